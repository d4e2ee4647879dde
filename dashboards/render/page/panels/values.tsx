/*
 * Panels that show one number per series: stat (BigValue) and bargauge (BarGauge) of @grafana/ui.
 */
import {
  FieldDisplay,
  getDisplayValueAlignmentFactors,
  getFieldDisplayValues,
  VizOrientation,
} from "@grafana/data";
import {
  BarGaugeDisplayMode,
  BarGaugeNamePlacement,
  BarGaugeSizing,
  BarGaugeValueMode,
} from "@grafana/schema";
import { BarGauge, BigValue, BigValueGraphMode, BigValueTextMode, VizRepeater } from "@grafana/ui";
import { fieldConfigOf } from "../frames";
import { PanelProps } from "./props";

function valuesOf({ panel, frames, theme, replace }: PanelProps, sparkline: boolean): FieldDisplay[] {
  return getFieldDisplayValues({
    data: frames,
    fieldConfig: fieldConfigOf(panel),
    reduceOptions: panel.options?.reduceOptions ?? { calcs: ["lastNotNull"], values: false },
    replaceVariables: replace as any,
    sparkline,
    theme,
    timeZone: "utc",
  });
}

export function StatPanel(props: PanelProps) {
  const { panel, width, height, theme } = props;
  const options = panel.options ?? {};
  const wide = options.wideLayout ?? true;
  return (
    <VizRepeater<FieldDisplay, any>
      getValues={() => valuesOf(props, options.graphMode !== BigValueGraphMode.None)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, count, width, height }) => (
        <BigValue
          value={value.display}
          count={count}
          sparkline={value.sparkline && { ...value.sparkline, timeRange: props.range }}
          colorMode={options.colorMode ?? "value"}
          graphMode={options.graphMode ?? BigValueGraphMode.Area}
          justifyMode={options.justifyMode}
          textMode={options.textMode ?? BigValueTextMode.Auto}
          percentChangeColorMode={options.percentChangeColorMode}
          alignmentFactors={alignmentFactors}
          text={options.text}
          width={width}
          height={height}
          theme={theme}
          disableWideLayout={!wide}
        />
      )}
      width={width}
      height={height}
      source={props.frames}
      itemSpacing={3}
      renderCounter={0}
      autoGrid
      orientation={options.orientation ?? VizOrientation.Auto}
    />
  );
}

export function BarGaugePanel(props: PanelProps) {
  const { panel, width, height, theme } = props;
  const options = panel.options ?? {};
  const manual = options.sizing === BarGaugeSizing.Manual;
  const mode = options.displayMode ?? BarGaugeDisplayMode.Gradient;
  return (
    <VizRepeater<FieldDisplay, any>
      getValues={() => valuesOf(props, false)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, orientation, width, height, count }) => (
        <BarGauge
          value={value.display}
          width={width}
          height={height}
          orientation={orientation}
          field={value.field}
          text={options.text}
          display={value.view?.getFieldDisplayProcessor(value.colIndex!)}
          theme={theme}
          itemSpacing={mode === BarGaugeDisplayMode.Lcd ? 2 : 10}
          displayMode={mode}
          alignmentFactors={count > 1 ? alignmentFactors : undefined}
          showUnfilled={options.showUnfilled ?? true}
          valueDisplayMode={options.valueMode ?? BarGaugeValueMode.Color}
          namePlacement={options.namePlacement ?? BarGaugeNamePlacement.Auto}
          isOverflow={false}
        />
      )}
      width={width}
      height={height}
      minVizWidth={manual ? options.minVizWidth : 8}
      minVizHeight={manual ? options.minVizHeight : 16}
      maxVizHeight={manual ? options.maxVizHeight : 300}
      source={props.frames}
      itemSpacing={10}
      renderCounter={0}
      orientation={options.orientation ?? VizOrientation.Auto}
    />
  );
}
