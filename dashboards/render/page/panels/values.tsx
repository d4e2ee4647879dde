/*
 * Panels that show one number per series: stat (BigValue) and bargauge (BarGauge) of @grafana/ui.
 */
import { FieldDisplay, getDisplayValueAlignmentFactors, getFieldDisplayValues } from "@grafana/data";
import { BarGauge, BigValue, BigValueGraphMode, VizRepeater } from "@grafana/ui";
import { fieldConfigOf } from "../frames";
import { PanelProps } from "./props";

function valuesOf({ panel, frames, theme }: PanelProps): FieldDisplay[] {
  return getFieldDisplayValues({
    data: frames,
    fieldConfig: fieldConfigOf(panel),
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text,
    sparkline: panel.options.graphMode === BigValueGraphMode.Area,
    theme,
    timeZone: "utc",
  });
}

export function StatPanel(props: PanelProps) {
  const { panel, width, height, theme } = props;
  const options = panel.options;
  return (
    <VizRepeater<FieldDisplay, any>
      getValues={() => valuesOf(props)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, count, width, height }) => (
        <BigValue
          value={value.display}
          count={count}
          sparkline={value.sparkline && { ...value.sparkline, timeRange: props.range }}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          justifyMode={options.justifyMode}
          textMode={options.textMode}
          percentChangeColorMode={options.percentChangeColorMode}
          alignmentFactors={alignmentFactors}
          width={width}
          height={height}
          theme={theme}
          disableWideLayout={!options.wideLayout}
        />
      )}
      width={width}
      height={height}
      source={props.frames}
      itemSpacing={3}
      renderCounter={0}
      autoGrid
      orientation={options.orientation}
    />
  );
}

export function BarGaugePanel(props: PanelProps) {
  const { panel, width, height, theme } = props;
  const options = panel.options;
  return (
    <VizRepeater<FieldDisplay, any>
      getValues={() => valuesOf(props)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, orientation, width, height, count }) => (
        <BarGauge
          value={value.display}
          width={width}
          height={height}
          orientation={orientation}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex!)}
          theme={theme}
          itemSpacing={10}
          displayMode={options.displayMode}
          alignmentFactors={count > 1 ? alignmentFactors : undefined}
          showUnfilled={options.showUnfilled}
          valueDisplayMode={options.valueMode}
          namePlacement={options.namePlacement}
          isOverflow={false}
        />
      )}
      width={width}
      height={height}
      minVizWidth={options.minVizWidth}
      minVizHeight={options.minVizHeight}
      maxVizHeight={options.maxVizHeight}
      source={props.frames}
      itemSpacing={10}
      renderCounter={0}
      orientation={options.orientation}
    />
  );
}
