/*
 * Rows over time: heatmap and state-timeline. Grafana's own code for these panels is in no package; its axes and scales
 * (UPlotConfigBuilder), legends, and the colour and text of a value are used. Cells and bars are drawn here.
 */
import {
  colorManipulator,
  DataFrame,
  Field,
  FieldType,
  formattedValueToString,
  getFieldDisplayName,
  getValueFormat,
  GrafanaTheme2,
} from "@grafana/data";
import { AxisPlacement, ScaleDirection, ScaleOrientation } from "@grafana/schema";
import { measureText, UPlotChart, UPlotConfigBuilder, VizLayout } from "@grafana/ui";
import { useMemo } from "react";
import type uPlot from "uplot";
import { legendOf } from "./legend";
import { PanelProps } from "./props";

interface Lane {
  name: string;
  times: number[];
  field: Field;
  step: number;
}

function lanesOf(frames: DataFrame[]): Lane[] {
  return frames.flatMap((frame) => {
    const time = frame.fields.find((one) => one.type === FieldType.time);
    const others = time ? frame.fields.filter((one) => one !== time && one.type !== FieldType.time) : [];
    return others.map((field) => ({
      name: getFieldDisplayName(field, frame, frames),
      times: time!.values as number[],
      field,
      step: time!.config.interval ?? time!.values[1] - time!.values[0],
    }));
  });
}

/** Axes of time and lane names, the first lane at the bottom, and a hook that draws between them. */
function configOf(
  names: string[],
  { panel, range, theme }: PanelProps,
  draw: (plot: uPlot) => void,
): UPlotConfigBuilder {
  const builder = new UPlotConfigBuilder("utc");
  builder.addScale({
    scaleKey: "x",
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: () => [range.from.valueOf(), range.to.valueOf()],
  });
  builder.addAxis({
    scaleKey: "x",
    isTime: true,
    placement: AxisPlacement.Bottom,
    theme,
    timeZone: "utc",
    grid: { show: false },
  });
  builder.addScale({
    scaleKey: "y",
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Up,
    range: () => [-0.5, Math.max(names.length, 1) - 0.5],
  });
  builder.addAxis({
    scaleKey: "y",
    placement: AxisPlacement.Left,
    theme,
    label: panel.options.yAxis?.axisLabel,
    grid: { show: false },
    size: () => 16 + Math.max(...names.map((name) => measureText(name, 12).width)),
    splits: (plot: uPlot) => {
      // No label closer to the next than its height.
      const every = Math.max(1, Math.ceil((names.length * 14 * devicePixelRatio) / plot.bbox.height));
      return names.map((_, index) => index).filter((index) => index % every === 0);
    },
    formatValue: (value: any) => names[value] ?? "",
  } as any);
  builder.addSeries({ scaleKey: "y", theme, show: false, pathBuilder: () => null } as any);
  builder.addHook("draw", draw);
  builder.setPrepData((frames) => [frames[0].fields[0].values, frames[0].fields[1].values] as any);
  return builder;
}

function Chart({
  names,
  width,
  height,
  props,
  draw,
}: {
  names: string[];
  width: number;
  height: number;
  props: PanelProps;
  draw: (plot: uPlot) => void;
}) {
  const config = useMemo(() => configOf(names, props, draw), [names, props, draw]);
  const data = [
    [props.range.from.valueOf(), props.range.to.valueOf()],
    [0, 0],
  ] as any;
  return <UPlotChart config={config} data={data} width={width} height={height} />;
}

/** The rectangle of a lane between two times, kept inside the plot. */
function rectangle(
  plot: uPlot,
  lane: number,
  from: number,
  to: number,
  fill: number,
): [number, number, number, number] {
  const { left, width } = plot.bbox;
  const x0 = Math.max(left, plot.valToPos(from, "x", true));
  const x1 = Math.min(left + width, plot.valToPos(to, "x", true));
  const y0 = plot.valToPos(lane + fill / 2, "y", true);
  const y1 = plot.valToPos(lane - fill / 2, "y", true);
  return [x0, y0, Math.max(0, x1 - x0), y1 - y0];
}

/** One colour, the more opaque the larger the share, in as many steps as Grafana takes. */
function opacityOf({ fill, steps }: any, theme: GrafanaTheme2): (share: number) => string {
  const colour = theme.visualization.getColorByName(fill);
  return (share) => colorManipulator.alpha(colour, Math.round(share * (steps - 1)) / (steps - 1));
}

export function HeatmapPanel(props: PanelProps) {
  const { panel, frames, width, height, theme } = props;
  const options = panel.options;
  const lanes = useMemo(() => lanesOf(frames), [frames]);
  const names = useMemo(() => lanes.map((lane) => withUnit(lane.name, options.yAxis.unit)), [lanes]);
  const visible = (value: number) => Number.isFinite(value) && value > options.filterValues.le;
  const shown = lanes.flatMap((lane) => (lane.field.values as number[]).filter(visible));
  const low: number = options.color.min ?? shown.reduce((one, other) => Math.min(one, other), Infinity);
  const high: number = options.color.max ?? shown.reduce((one, other) => Math.max(one, other), -Infinity);
  const colour = opacityOf(options.color, theme);
  const draw = useMemo(
    () => (plot: uPlot) => {
      const gap = options.cellGap * devicePixelRatio;
      lanes.forEach((lane, row) =>
        lane.times.forEach((time, index) => {
          const value = lane.field.values[index];
          if (visible(value)) {
            const [x, y, w, h] = rectangle(plot, row, time - lane.step, time, 1);
            plot.ctx.fillStyle = colour(high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 1);
            plot.ctx.fillRect(x, y, Math.max(1, w - gap), Math.max(1, h - gap));
          }
        }),
      );
    },
    [lanes, low, high],
  );
  const text = (value: number) => withUnit(String(value), options.cellValues.unit);
  const scale = shown.length ? 34 : 0;
  return (
    <div style={{ width, height }}>
      <Chart names={names} width={width} height={height - scale} props={props} draw={draw} />
      {scale > 0 && <Scale low={text(low)} high={text(high)} colour={colour} />}
    </div>
  );
}

/** A number with its unit; any other text is unchanged. */
function withUnit(text: string, unit: string): string {
  const value = Number(text);
  return Number.isFinite(value) ? formattedValueToString(getValueFormat(unit)(value)) : text;
}

function Scale({ low, high, colour }: { low: string; high: string; colour: (share: number) => string }) {
  const stops = Array.from({ length: 32 }, (_, index) => colour(index / 31));
  return (
    <div style={{ width: 300, maxWidth: "100%", padding: "4px 8px 0" }}>
      <div
        style={{ height: 8, borderRadius: 2, background: `linear-gradient(90deg, ${stops.join(", ")})` }}
      />
      <div style={{ display: "flex", justifyContent: "space-between", fontSize: 12 }}>
        <span>{low}</span>
        <span>{high}</span>
      </div>
    </div>
  );
}

interface State {
  from: number;
  to: number;
  text: string;
  colour: string;
}

/** Consecutive samples of the same text as one state. */
function statesOf(lane: Lane): State[] {
  const found: State[] = [];
  lane.times.forEach((time, index) => {
    const value = lane.field.values[index];
    if (!Number.isFinite(value)) {
      return;
    }
    const display = lane.field.display!(value);
    const [text, colour] = [formattedValueToString(display), display.color ?? "#808080"];
    const last = found[found.length - 1];
    if (last && last.text === text && time - last.to < lane.step * 1.5) {
      last.to = time + lane.step;
    } else {
      if (last && last.to > time) {
        last.to = time;
      }
      found.push({ from: time, to: time + lane.step, text, colour });
    }
  });
  return found;
}

export function StatesPanel(props: PanelProps) {
  const { panel, frames, width, height } = props;
  // The first series is at the top.
  const lanes = useMemo(() => lanesOf(frames).reverse(), [frames]);
  const names = useMemo(() => lanes.map((lane) => lane.name), [lanes]);
  const rows = useMemo(() => lanes.map(statesOf), [lanes]);
  const draw = useMemo(
    () => (plot: uPlot) => {
      plot.ctx.globalAlpha = panel.fieldConfig.defaults.custom.fillOpacity / 100;
      rows.forEach((row, index) =>
        row.forEach(({ from, to, colour }) => {
          plot.ctx.fillStyle = colour;
          plot.ctx.fillRect(...rectangle(plot, index, from, to, panel.options.rowHeight));
        }),
      );
      plot.ctx.globalAlpha = 1;
    },
    [rows],
  );
  const colours = new Map(rows.flat().map((one) => [one.text, one.colour]));
  const legend = legendOf(
    panel.options,
    [...colours].map(([label, color]) => ({ label, color })),
  );
  return (
    <VizLayout width={width} height={height} legend={legend}>
      {(w, h) => <Chart names={names} width={w} height={h} props={props} draw={draw} />}
    </VizLayout>
  );
}
