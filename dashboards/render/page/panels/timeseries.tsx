/*
 * Lines and areas over time, by @grafana/ui's TimeSeries, with the board's annotations drawn over them: Grafana's own
 * layer for these is in no package.
 */
import { colorManipulator } from "@grafana/data";
import { TimeSeries } from "@grafana/ui";
import type uPlot from "uplot";
import { Mark } from "../document";
import { PanelProps } from "./props";

export function TimeseriesPanel({ panel, frames, width, height, range, marks, theme }: PanelProps) {
  const colourOf = (mark: Mark) => theme.visualization.getColorByName(mark.colour);
  const renderer = {
    fieldMap: {},
    indicesOnly: [],
    init: (builder: any) => builder.addHook("draw", (plot: uPlot) => drawMarks(plot, marks, colourOf)),
  };
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      width={width}
      height={height}
      timeRange={range}
      timeZone="utc"
      legend={panel.options.legend}
      renderers={[renderer]}
      options={panel.options}
    />
  );
}

/** A dashed line for a moment, a tinted area for a time span, as in Grafana. */
function drawMarks(plot: uPlot, marks: Mark[], colourOf: (mark: Mark) => string) {
  const { ctx, bbox } = plot;
  const pixel = window.devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + 6 * pixel);
  ctx.clip();
  for (const mark of marks) {
    const colour = colourOf(mark);
    const left = plot.valToPos(mark.from, "x", true);
    const right = plot.valToPos(mark.to, "x", true);
    const wide = right - left > 2 * pixel;
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = pixel;
    ctx.setLineDash([4 * pixel, 4 * pixel]);
    for (const x of wide ? [left, right] : [left]) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    if (wide) {
      ctx.fillRect(left, bbox.top + bbox.height, right - left, 5 * pixel);
      ctx.fillStyle = colorManipulator.alpha(colour, 0.1);
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
    } else {
      ctx.beginPath();
      ctx.moveTo(left, bbox.top + bbox.height);
      ctx.lineTo(left - 5 * pixel, bbox.top + bbox.height + 6 * pixel);
      ctx.lineTo(left + 5 * pixel, bbox.top + bbox.height + 6 * pixel);
      ctx.fill();
    }
  }
  ctx.restore();
}
