/*
 * Horizontal stacked bars by category (barchart), drawn here as SVG with the first category on top and the value in each
 * bar. Grafana's own code for this panel is in no package; its colours, texts and legend are used.
 */
import { DataFrame, Field, FieldType, formattedValueToString, GrafanaTheme2 } from "@grafana/data";
import { getFieldDisplayName, getFieldSeriesColor } from "@grafana/data";
import { VizLayout } from "@grafana/ui";
import { legendOf } from "./legend";
import { PanelProps } from "./props";

interface Bar {
  row: number;
  from: number;
  to: number;
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
  const frame = frames[0];
  const nameOf = (field: Field) => getFieldDisplayName(field, frame, frames);
  const labels = frame.fields.find((one) => nameOf(one) === panel.options.xField)!.values;
  const fields = frame.fields.filter((one) => one.type === FieldType.number);
  const items = fields
    .filter((field) => !field.config.custom?.hideFrom?.legend)
    .map((field) => ({ label: nameOf(field), color: getFieldSeriesColor(field, theme).color }));
  const bars = stackedBars(frame, fields, theme);
  return (
    <VizLayout width={width} height={height} legend={legendOf(panel.options, items)}>
      {(w, h) => (
        <Bars
          {...{ bars, labels, theme }}
          width={w}
          height={h}
          field={fields[fields.length - 1]}
          thickness={panel.options.groupWidth * panel.options.barWidth}
        />
      )}
    </VizLayout>
  );
}

function stackedBars(frame: DataFrame, fields: Field[], theme: GrafanaTheme2): Bar[] {
  const bars: Bar[] = [];
  for (let row = 0; row < frame.length; row++) {
    let from = 0;
    for (const field of fields) {
      const value = field.values[row];
      if (Number.isFinite(value)) {
        const text = formattedValueToString(field.display!(value));
        bars.push({ row, from, to: from + value, text, colour: getFieldSeriesColor(field, theme).color });
        from += value;
      }
    }
  }
  return bars;
}

interface BarsProps {
  bars: Bar[];
  labels: string[];
  theme: GrafanaTheme2;
  width: number;
  height: number;
  /** Whose unit the axis has. */
  field: Field;
  /** Of a bar, as a share of its row. */
  thickness: number;
}

function Bars({ bars, labels, theme, width, height, field, thickness }: BarsProps) {
  const left = Math.max(...labels.map((label) => label.length)) * 6.6 + 12;
  const [right, bottom] = [44, 22];
  const top = Math.max(...bars.map((bar) => bar.to));
  const x = (value: number) => left + (top ? value / top : 0) * (width - left - right);
  const band = (height - bottom) / labels.length;
  const bold = band * thickness;
  return (
    <svg
      width={width}
      height={height}
      fontFamily={theme.typography.fontFamily}
      fontSize={12}
      fill={theme.colors.text.primary}
    >
      {ticks(top, (width - left - right) / 80).map((tick) => (
        <g key={tick}>
          <line x1={x(tick)} x2={x(tick)} y2={height - bottom} stroke={theme.colors.border.weak} />
          <text x={x(tick)} y={height - 6} textAnchor="middle">
            {formattedValueToString(field.display!(tick))}
          </text>
        </g>
      ))}
      {labels.map((label, row) => (
        <text key={row} x={left - 8} y={band * (row + 0.5) + 4} textAnchor="end">
          {label}
        </text>
      ))}
      {bars.map(({ row, from, to, text, colour }, index) => {
        const [start, end, y] = [x(from), x(to), band * row + (band - bold) / 2];
        const inside = end - start > text.length * 7 + 8;
        return (
          <g key={index}>
            <rect x={start} y={y} width={end - start} height={bold - 1} fill={colour} />
            {text.trim() && (
              <text
                x={inside ? (start + end) / 2 : end + 4}
                y={y + bold / 2 + 4}
                textAnchor={inside ? "middle" : "start"}
                fill={inside ? theme.colors.getContrastText(colour) : undefined}
              >
                {text}
              </text>
            )}
          </g>
        );
      })}
    </svg>
  );
}
