/*
 * The top of a board: its title, its variables, its links and the time range. It can be read, not pressed.
 */
import { dateTimeFormat } from "@grafana/data";
import { Icon, useTheme2 } from "@grafana/ui";
import { ReactNode } from "react";
import { BoardDocument } from "./document";

function Box({ label, children }: { label?: string; children: ReactNode }) {
  const theme = useTheme2();
  const edge = `1px solid ${theme.components.input.borderColor}`;
  const shared = { padding: "0 8px", lineHeight: "30px", border: edge, fontSize: 14 };
  return (
    <span style={{ display: "inline-flex", marginRight: 8 }}>
      {label && (
        <span
          style={{
            ...shared,
            borderRight: 0,
            background: theme.colors.background.secondary,
            fontWeight: 500,
            fontSize: 12,
          }}
        >
          {label}
        </span>
      )}
      <span style={{ ...shared, background: theme.components.input.background }}>{children}</span>
    </span>
  );
}

export function Header({ document }: { document: BoardDocument }) {
  const time = (milliseconds: number) =>
    dateTimeFormat(milliseconds, { timeZone: "utc", format: "YYYY-MM-DD HH:mm" });
  return (
    <div style={{ padding: "16px 16px 8px" }}>
      <div style={{ display: "flex", justifyContent: "space-between", marginBottom: 12 }}>
        <span style={{ fontSize: 20, fontWeight: 500 }}>{document.board.title}</span>
        <Box>
          <Icon name="clock-nine" /> {time(document.from)} to {time(document.to)} UTC
        </Box>
      </div>
      <div style={{ display: "flex", justifyContent: "space-between" }}>
        <span>
          {document.variables
            .filter((one) => !one.hidden)
            .map((one) => (
              <Box key={one.name} label={one.label || one.name}>
                {one.text} <Icon name="angle-down" />
              </Box>
            ))}
        </span>
        <span>
          {(document.board.links ?? []).map((link: any) => (
            <Box key={link.title}>
              <Icon name="apps" /> {link.title}
            </Box>
          ))}
        </span>
      </div>
    </div>
  );
}
