/*
 * The top of a board: its title, its variables, its links and the time range.
 */
import { dateTimeFormat } from "@grafana/data";
import { Icon, useTheme2 } from "@grafana/ui";
import { ReactNode } from "react";
import { BoardDocument } from "./document";

const SPREAD = { display: "flex", justifyContent: "space-between" };

function Box({ label, children }: { label?: string; children: ReactNode }) {
  const { components, colors } = useTheme2();
  const edge = `1px solid ${components.input.borderColor}`;
  const shared = { padding: "0 8px", lineHeight: "30px", border: edge, fontSize: 14 };
  const caption = { borderRight: 0, background: colors.background.secondary, fontWeight: 500, fontSize: 12 };
  return (
    <span style={{ display: "inline-flex", marginRight: 8 }}>
      {label && <span style={{ ...shared, ...caption }}>{label}</span>}
      <span style={{ ...shared, background: components.input.background }}>{children}</span>
    </span>
  );
}

export function Header({ document }: { document: BoardDocument }) {
  const time = (milliseconds: number) =>
    dateTimeFormat(milliseconds, { timeZone: "utc", format: "YYYY-MM-DD HH:mm" });
  return (
    <div style={{ padding: "16px 16px 8px" }}>
      <div style={{ ...SPREAD, marginBottom: 12 }}>
        <span style={{ fontSize: 20, fontWeight: 500 }}>{document.board.title}</span>
        <Box>
          <Icon name="clock-nine" /> {time(document.from)} to {time(document.to)} UTC
        </Box>
      </div>
      <div style={SPREAD}>
        <span>
          {document.variables.map((one) => (
            <Box key={one.name} label={one.label}>
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
