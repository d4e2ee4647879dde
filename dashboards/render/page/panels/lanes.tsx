/*
 * Rows over time: heatmap, state-timeline and status-history, drawn here on Grafana's axes.
 *
 * Grafana's own code for these panels is not in its packages. What is: the axes and scales (UPlotConfigBuilder),
 * the legends, and how a value becomes a colour and a text. Cells and bars are rectangles drawn in between.
 */
import {
  DataFrame,
  Field,
  FieldType,
  formattedValueToString,
  getFieldDisplayName,
  getValueFormat,
} from "@grafana/data";
import { AxisPlacement, ScaleDirection, ScaleOrientation } from "@grafana/schema";
import { UPlotChart, UPlotConfigBuilder, VizLayout, VizLegend } from "@grafana/ui";
import * as chromatic from "d3-scale-chromatic";
import { useMemo } from "react";
import type uPlot from "uplot";
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

/** Axes over time and names, the given lane lowest first, and a hook that draws between them. */
function configOf(
  names: string[],
  { range, theme }: PanelProps,
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
    grid: { show: false },
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

/** Grafana turns a scheme round in the dark theme, so that small values lie near the background. */
const LIGHT_FIRST = new Set([
  "Blues",
  "Greens",
  "Greys",
  "Oranges",
  "Purples",
  "Reds",
  "BuGn",
  "BuPu",
  "GnBu",
  "OrRd",
  "PuBu",
  "PuBuGn",
  "PuRd",
  "RdPu",
  "YlGn",
  "YlGnBu",
  "YlOrBr",
  "YlOrRd",
]);

function schemeOf(options: any, dark: boolean): (share: number) => string {
  const name = options.scheme ?? "Oranges";
  const interpolate = (chromatic as any)[`interpolate${name}`] ?? chromatic.interpolateOranges;
  const steps = Math.max(2, options.steps ?? 64);
  const turned = (dark && LIGHT_FIRST.has(name)) !== !!options.reverse;
  return (share) => {
    const quantized = Math.round(Math.min(1, Math.max(0, share)) * (steps - 1)) / (steps - 1);
    return interpolate(turned ? 1 - quantized : quantized);
  };
}

export function HeatmapPanel(props: PanelProps) {
  const { panel, frames, width, height, theme } = props;
  const options = panel.options ?? {};
  const lanes = useMemo(() => lanesOf(frames), [frames]);
  const names = useMemo(() => lanes.map((lane) => withUnit(lane.name, options.yAxis?.unit)), [lanes]);
  const hidden = options.filterValues?.le ?? 1e-9;
  const shown = lanes.flatMap((lane) =>
    (lane.field.values as number[]).filter((one) => Number.isFinite(one) && one > hidden),
  );
  const low = options.color?.min ?? shown.reduce((one, other) => Math.min(one, other), Infinity);
  const high = options.color?.max ?? shown.reduce((one, other) => Math.max(one, other), -Infinity);
  const colour = schemeOf(options.color ?? {}, theme.isDark);
  const exponent = options.color?.scale === "linear" ? 1 : (options.color?.exponent ?? 0.5);
  const draw = useMemo(
    () => (plot: uPlot) => {
      const gap = (options.cellGap ?? 1) * devicePixelRatio;
      lanes.forEach((lane, row) =>
        lane.times.forEach((time, index) => {
          const value = lane.field.values[index];
          if (Number.isFinite(value) && value > hidden) {
            const [x, y, w, h] = rectangle(plot, row, time - lane.step, time, 1);
            const share = high > low ? (value - low) / (high - low) : 1;
            plot.ctx.fillStyle = colour(share ** exponent);
            plot.ctx.fillRect(x, y, Math.max(1, w - gap), Math.max(1, h - gap));
          }
        }),
      );
    },
    [lanes, low, high],
  );
  const text = (value: number) =>
    withUnit(String(value), options.cellValues?.unit ?? lanes[0]?.field.config.unit);
  const legend = options.legend?.show === false || !shown.length ? 0 : 34;
  return (
    <div style={{ width, height }}>
      <Chart names={names} width={width} height={height - legend} props={props} draw={draw} />
      {legend > 0 && (
        <Scale low={text(low)} high={text(high)} colour={(share) => colour(share ** exponent)} />
      )}
    </div>
  );
}

/** A number with its unit; what is no number stays as it is. */
function withUnit(text: string, unit?: string): string {
  const value = Number(text);
  return unit && Number.isFinite(value) ? formattedValueToString(getValueFormat(unit)(value)) : text;
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

/** Stretches of equal text; with status-history every sample stays a box of its own. */
function stretches(
  lane: Lane,
  merge: boolean,
): Array<{ from: number; to: number; text: string; colour: string }> {
  const found: Array<{ from: number; to: number; text: string; colour: string }> = [];
  lane.times.forEach((time, index) => {
    const value = lane.field.values[index];
    if (value === null || value === undefined || Number.isNaN(value)) {
      return;
    }
    const display = lane.field.display!(value);
    const [text, colour] = [formattedValueToString(display), display.color ?? "#808080"];
    const last = found[found.length - 1];
    if (merge && last && last.text === text && last.colour === colour && time - last.to < lane.step * 1.5) {
      last.to = time + lane.step;
    } else {
      if (merge && last && last.to > time) {
        last.to = time;
      }
      found.push({ from: time, to: time + lane.step, text, colour });
    }
  });
  return found;
}

export function StatesPanel(props: PanelProps) {
  const { panel, frames, width, height, theme } = props;
  const options = panel.options ?? {};
  const merge = panel.type === "state-timeline";
  // The first series stands on top.
  const lanes = useMemo(() => lanesOf(frames).reverse(), [frames]);
  const names = useMemo(() => lanes.map((lane) => lane.name), [lanes]);
  const rows = useMemo(() => lanes.map((lane) => stretches(lane, merge)), [lanes]);
  const draw = useMemo(
    () => (plot: uPlot) => {
      const { ctx } = plot;
      ctx.font = `${12 * devicePixelRatio}px ${theme.typography.fontFamily}`;
      ctx.textBaseline = "middle";
      rows.forEach((row, index) =>
        row.forEach(({ from, to, text, colour }) => {
          const [x, y, w, h] = rectangle(plot, index, from, to, options.rowHeight ?? 0.9);
          ctx.fillStyle = colour;
          ctx.globalAlpha = (lanes[index].field.config.custom?.fillOpacity ?? 70) / 100;
          ctx.fillRect(x, y, w, h);
          ctx.globalAlpha = 1;
          if (
            options.showValue !== "never" &&
            ctx.measureText(text).width + 8 < w &&
            h > 12 * devicePixelRatio
          ) {
            ctx.fillStyle = theme.colors.getContrastText(colour, theme.colors.contrastThreshold);
            ctx.fillText(text, x + 4 * devicePixelRatio, y + h / 2);
          }
        }),
      );
    },
    [rows],
  );
  const items = [...new Map(rows.flat().map((one) => [one.text, one.colour])).entries()];
  const legend =
    options.legend?.showLegend !== false && items.length ? (
      <VizLayout.Legend placement={options.legend?.placement ?? "bottom"}>
        <VizLegend
          placement={options.legend?.placement ?? "bottom"}
          displayMode={options.legend?.displayMode ?? "list"}
          items={items.map(([label, color]) => ({ label, color, yAxis: 1 }))}
          readonly
        />
      </VizLayout.Legend>
    ) : null;
  return (
    <VizLayout width={width} height={height} legend={legend}>
      {(w, h) => <Chart names={names} width={w} height={h} props={props} draw={draw} />}
    </VizLayout>
  );
}
