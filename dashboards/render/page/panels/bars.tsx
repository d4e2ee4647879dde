/*
 * Bars by category (barchart), drawn here as SVG.
 *
 * Grafana's own code for this panel is not in its packages. What is: colours, texts and legend. Bars lie
 * horizontally, stacked or beside each other, the first category on top, with their values if the panel says so.
 */
import {
  Field,
  FieldType,
  formattedValueToString,
  getFieldDisplayName,
  getFieldSeriesColor,
} from "@grafana/data";
import { useTheme2, VizLayout, VizLegend } from "@grafana/ui";
import { PanelProps } from "./props";

interface Bar {
  row: number;
  from: number;
  to: number;
  lane: number;
  lanes: number;
  text: string;
  colour: string;
}

/** Round numbers from 0 to the greatest, about `count` of them. */
function ticks(top: number, count: number): number[] {
  const rough = top / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? power;
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, index) => index * step);
}

export function BarChartPanel({ panel, frames, width, height, theme }: PanelProps) {
  const options = panel.options ?? {};
  const frame = frames[0];
  const names =
    frame.fields.find((one) => getFieldDisplayName(one, frame, frames) === options.xField) ??
    frame.fields.find((one) => one.type === FieldType.string);
  const shown = frame.fields.filter(
    (one) => one.type === FieldType.number && !one.config.custom?.hideFrom?.viz,
  );
  const stacked = (options.stacking ?? "none") !== "none";
  const bars = barsOf(frame.length, shown, stacked, (field) => getFieldSeriesColor(field, theme).color);
  const items = shown
    .filter((field) => !field.config.custom?.hideFrom?.legend)
    .map((field) => ({
      label: getFieldDisplayName(field, frame, frames),
      color: getFieldSeriesColor(field, theme).color,
      yAxis: 1,
    }));
  const placement = options.legend?.placement ?? "bottom";
  const legend =
    options.legend?.showLegend === false ? null : (
      <VizLayout.Legend placement={placement}>
        <VizLegend
          placement={placement}
          displayMode={options.legend?.displayMode ?? "list"}
          items={items}
          readonly
        />
      </VizLayout.Legend>
    );
  const labels = Array.from({ length: frame.length }, (_, row) => String(names?.values[row] ?? row));
  return (
    <VizLayout width={width} height={height} legend={legend}>
      {(w, h) => (
        <Bars
          bars={bars}
          labels={labels}
          width={w}
          height={h}
          field={shown[shown.length - 1]}
          values={options.showValue !== "never"}
          options={options}
        />
      )}
    </VizLayout>
  );
}

function barsOf(rows: number, fields: Field[], stacked: boolean, colourOf: (field: Field) => string): Bar[] {
  const bars: Bar[] = [];
  for (let row = 0; row < rows; row++) {
    let from = 0;
    fields.forEach((field, lane) => {
      const value = field.values[row];
      if (!Number.isFinite(value)) {
        return;
      }
      const to = stacked ? from + value : value;
      const text = formattedValueToString(field.display!(value));
      const place = stacked ? { from, to, lane: 0, lanes: 1 } : { from: 0, to, lane, lanes: fields.length };
      bars.push({ row, ...place, text, colour: colourOf(field) });
      from = to;
    });
  }
  return bars;
}

function Bars({
  bars,
  labels,
  width,
  height,
  field,
  values,
  options,
}: {
  bars: Bar[];
  labels: string[];
  width: number;
  height: number;
  field?: Field;
  values: boolean;
  options: any;
}) {
  const theme = useTheme2();
  const left = Math.max(...labels.map((label) => label.length), 1) * 6.6 + 12;
  const [right, bottom] = [44, 22];
  const top = field?.config.max ?? Math.max(...bars.map((bar) => bar.to), 0);
  const x = (value: number) => left + (top ? value / top : 0) * (width - left - right);
  const band = (height - bottom) / Math.max(labels.length, 1);
  const thickness = band * (options.groupWidth ?? 0.7) * (options.barWidth ?? 0.97);
  const marks = ticks(top, (width - left - right) / 80);
  const format = (value: number) =>
    field?.display ? formattedValueToString(field.display(value)) : String(value);
  return (
    <svg
      width={width}
      height={height}
      fontFamily={theme.typography.fontFamily}
      fontSize={12}
      fill={theme.colors.text.primary}
    >
      {marks.map((mark) => (
        <g key={mark}>
          <line
            x1={x(mark)}
            x2={x(mark)}
            y1={0}
            y2={height - bottom}
            stroke={theme.isDark ? "rgba(240,250,255,0.09)" : "rgba(0,10,23,0.09)"}
          />
          <text x={x(mark)} y={height - 6} textAnchor="middle">
            {format(mark)}
          </text>
        </g>
      ))}
      {labels.map((label, row) => (
        <text key={row} x={left - 8} y={band * (row + 0.5) + 4} textAnchor="end">
          {label}
        </text>
      ))}
      {bars.map((bar, index) => {
        const y = band * bar.row + (band - thickness) / 2 + (thickness / bar.lanes) * bar.lane;
        const [start, end] = [x(bar.from), x(bar.to)];
        const fits = end - start > bar.text.length * 7 + 8;
        const inside = theme.colors.getContrastText(
          bar.colour === "transparent" ? theme.colors.background.primary : bar.colour,
        );
        return (
          <g key={index}>
            <rect
              x={start}
              y={y}
              width={Math.max(0, end - start)}
              height={thickness / bar.lanes - 1}
              fill={bar.colour}
            />
            {values && bar.text.trim() && (
              <text
                x={fits ? (start + end) / 2 : end + 4}
                y={y + thickness / bar.lanes / 2 + 4}
                textAnchor={fits ? "middle" : "start"}
                fill={fits ? inside : undefined}
              >
                {bar.text}
              </text>
            )}
          </g>
        );
      })}
    </svg>
  );
}
