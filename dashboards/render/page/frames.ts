/*
 * Prometheus's answers as Grafana's data frames, with a panel's transformations and field options applied.
 *
 * The shapes are those of Grafana's Prometheus data source: a frame per series (Time, Value with labels), one frame with
 * a column per label for format "table", one frame per bucket in ascending order for format "heatmap".
 */
import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  createDataFrame,
  DataFrame,
  FieldConfigOptionsRegistry,
  FieldType,
  GrafanaTheme2,
  Registry,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from "@grafana/data";
import { lastValueFrom } from "rxjs";
import { Answer, Series } from "./document";

standardTransformersRegistry.setInit(() =>
  Object.values(standardTransformers)
    .filter((one: any, index, all) => one?.id && all.indexOf(one) === index)
    .map((one: any) => ({ id: one.id, name: one.name, transformation: () => Promise.resolve(one) }) as any),
);

function seriesFrame(series: Series, answer: Answer): DataFrame {
  const { __name__: _, ...labels } = series.metric;
  const name = answer.legend.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => series.metric[label] ?? label);
  return createDataFrame({
    refId: answer.refId,
    name,
    fields: [
      {
        name: "Time",
        type: FieldType.time,
        values: series.values.map(([seconds]) => seconds * 1000),
        // A missing step is drawn as a gap.
        config: { interval: answer.step_ms },
      },
      {
        name: "Value",
        type: FieldType.number,
        labels,
        values: series.values.map(([, value]) => Number(value)),
        config: { displayNameFromDS: name },
      },
    ],
  });
}

function tableFrame(answer: Answer, several: boolean): DataFrame {
  const labels = [...new Set(answer.series.flatMap((one) => Object.keys(one.metric)))].sort();
  const rows = answer.series.flatMap((one) => one.values.map((pair) => ({ metric: one.metric, pair })));
  return createDataFrame({
    refId: answer.refId,
    fields: [
      { name: "Time", type: FieldType.time, values: rows.map(({ pair }) => pair[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        values: rows.map(({ metric }) => metric[label] ?? ""),
      })),
      {
        name: several ? `Value #${answer.refId}` : "Value",
        type: FieldType.number,
        values: rows.map(({ pair }) => Number(pair[1])),
      },
    ],
  });
}

/** One frame per bucket, the lowest first, with its own count instead of the cumulative one. */
function bucketFrames(answer: Answer): DataFrame[] {
  const bound = (one: Series) => (one.metric.le === "+Inf" ? Infinity : Number(one.metric.le));
  const sorted = [...answer.series].sort((one, other) => bound(one) - bound(other));
  const below: Map<number, number> = new Map();
  return sorted.map((series) => {
    const values = series.values.map(([seconds, text]): [number, string] => {
      const value = Number(text);
      const own = value - (below.get(seconds) ?? 0);
      below.set(seconds, value);
      return [seconds, String(own)];
    });
    return seriesFrame({ ...series, values }, answer);
  });
}

export function framesOf(answers: Answer[]): DataFrame[] {
  const tables = answers.filter((one) => one.format === "table").length;
  return answers.flatMap((answer) => {
    if (answer.format === "table") {
      return answer.series.length ? [tableFrame(answer, tables > 1)] : [];
    }
    if (answer.format === "heatmap") {
      return bucketFrames(answer);
    }
    return answer.series.map((series) => seriesFrame(series, answer));
  });
}

export async function transformed(frames: DataFrame[], transformations?: any[]): Promise<DataFrame[]> {
  return transformations?.length ? lastValueFrom(transformDataFrame(transformations, frames)) : frames;
}

/** Grafana's defaults for options that are missing from a panel's JSON. */
const CUSTOM: Record<string, any> = {
  timeseries: {
    drawStyle: "line",
    lineInterpolation: "linear",
    gradientMode: "none",
    pointSize: 5,
    stacking: { mode: "none", group: "A" },
    axisPlacement: "auto",
    axisColorMode: "text",
    spanNulls: false,
    hideFrom: { viz: false, legend: false, tooltip: false },
  },
  table: { cellOptions: { type: "auto" } },
};
const STANDARD = [
  ...["displayName", "unit", "min", "max", "decimals", "color", "noValue", "thresholds", "mappings", "links"],
  ...["filterable", "fieldMinMax", "actions", "description"],
];

/** The options that a panel and its overrides use, each taken as it is. */
function registryOf(defaults: any, overrides: any[]): FieldConfigOptionsRegistry {
  const custom = new Set(Object.keys(defaults.custom));
  for (const { id } of overrides.flatMap((one) => one.properties)) {
    if (id.startsWith("custom.")) {
      custom.add(id.slice("custom.".length));
    }
  }
  const item = (id: string, path: string, isCustom: boolean): any => ({
    id,
    path,
    isCustom,
    name: id,
    process: (value: any) => (id === "thresholds" && value ? withoutNull(value) : value),
    // The text beside an axis is of the values', not of the time's.
    shouldApply: (field: any) => id !== "custom.axisLabel" || field.type !== FieldType.time,
  });
  return new Registry(() => [
    ...STANDARD.map((id) => item(id, id, false)),
    ...[...custom].map((path) => item(`custom.${path}`, path, true)),
  ]) as any;
}

/** JSON has no -Infinity: the first step's value is null there. */
function withoutNull(thresholds: any): any {
  const steps = thresholds.steps.map((step: any, index: number) =>
    index ? step : { ...step, value: -Infinity },
  );
  return { ...thresholds, steps };
}

export function fieldConfigOf(panel: any): any {
  const { defaults, overrides } = panel.fieldConfig;
  const palette = ["timeseries", "barchart"].includes(panel.type);
  return {
    defaults: {
      color: { mode: palette ? "palette-classic" : "thresholds" },
      ...defaults,
      custom: { ...CUSTOM[panel.type], ...defaults.custom },
      thresholds: withoutNull(defaults.thresholds),
    },
    overrides: overrides ?? [],
  };
}

export function withOptions(frames: DataFrame[], panel: any, theme: GrafanaTheme2): DataFrame[] {
  const fieldConfig = fieldConfigOf(panel);
  const found = applyFieldOverrides({
    data: frames,
    fieldConfig,
    fieldConfigRegistry: registryOf(fieldConfig.defaults, fieldConfig.overrides),
    replaceVariables: (text) => text,
    theme,
    timeZone: "utc",
  });
  // Tables and legends read the names from this cache, not the fields' own.
  cacheFieldDisplayNames(found);
  return found;
}
