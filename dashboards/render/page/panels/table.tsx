/*
 * Tables, by @grafana/ui's TableNG, which Grafana's table panel also uses.
 */
import { TableNG } from "@grafana/ui/unstable";
import { fieldConfigOf } from "../frames";
import { PanelProps } from "./props";

export function TablePanel({ panel, frames, width, height, range }: PanelProps) {
  return (
    <TableNG
      data={frames[0]}
      width={width}
      height={height}
      noHeader={false}
      sortBy={panel.options.sortBy}
      cellHeight={panel.options.cellHeight}
      enablePagination={Boolean(panel.options.enablePagination)}
      fieldConfig={fieldConfigOf(panel)}
      timeRange={range}
      structureRev={1}
      disableSanitizeHtml={false}
      showTypeIcons={false}
      // A picture is not scrolled.
      enableVirtualization={false}
    />
  );
}
