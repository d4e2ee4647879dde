/*
 * Tables, by @grafana/ui's TableNG, the one that Grafana's table panel draws with.
 */
import { TableNG } from "@grafana/ui/unstable";
import { fieldConfigOf } from "../frames";
import { PanelProps } from "./props";

export function TablePanel({ panel, frames, width, height, range }: PanelProps) {
  const options = panel.options ?? {};
  // With several frames Grafana shows the first and a list to choose from below it.
  return (
    <TableNG
      data={frames[options.frameIndex ?? 0] ?? frames[0]}
      width={width}
      height={height}
      noHeader={options.showHeader === false}
      sortBy={options.sortBy}
      cellHeight={options.cellHeight ?? "sm"}
      enablePagination={options.enablePagination ?? false}
      fieldConfig={fieldConfigOf(panel)}
      timeRange={range}
      structureRev={1}
      disableSanitizeHtml={false}
      showTypeIcons={options.showTypeIcons ?? false}
      // A picture has no rows to scroll to.
      enableVirtualization={false}
    />
  );
}
