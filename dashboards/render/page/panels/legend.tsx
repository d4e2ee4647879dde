/*
 * The legend of the panels that are drawn here.
 */
import { VizLayout, VizLegend } from "@grafana/ui";

export function legendOf({ legend }: any, items: Array<{ label: string; color: string }>) {
  return (
    <VizLayout.Legend placement={legend.placement}>
      <VizLegend
        placement={legend.placement}
        displayMode={legend.displayMode}
        items={items.map((item) => ({ ...item, yAxis: 1 }))}
        readonly
      />
    </VizLayout.Legend>
  );
}
