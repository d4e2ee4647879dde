/*
 * Answers of Prometheus as Grafana's data frames, with a panel's transformations and field options applied.
 *
 * In: the answers of one panel and its JSON. Out: frames as a panel of Grafana gets them. The shapes are those
 * of Grafana's Prometheus data source: a frame per series (Time, Value with labels), one frame with a column
 * per label for format "table", buckets in ascending order, taken apart, for format "heatmap".
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

/** "rank {{rank}}" filled from labels; without a pattern the series as Prometheus writes it. */
function legendOf(series: Series, answer: Answer): string | undefined {
  if (answer.legend && answer.legend !== "__auto") {
    return answer.legend.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => series.metric[label] ?? label);
  }
  const { __name__: name = "", ...labels } = series.metric;
  const inside = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  if (answer.legend === "__auto" && inside.length === 1) {
    return Object.values(labels)[0];
  }
  return inside.length ? `${name}{${inside.join(", ")}}` : name || "Value";
}

function seriesFrame(series: Series, answer: Answer): DataFrame {
  const { __name__: _, ...labels } = series.metric;
  return createDataFrame({
    refId: answer.refId,
    name: legendOf(series, answer),
    fields: [
      {
        name: "Time",
        type: FieldType.time,
        values: series.values.map(([seconds]) => seconds * 1000),
        // Where a step is missing, a gap is drawn.
        config: { interval: answer.step_ms },
      },
      {
        name: "Value",
        type: FieldType.number,
        labels,
        values: series.values.map(([, value]) => Number(value)),
        config: { displayNameFromDS: legendOf(series, answer) },
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

/** Cumulative buckets, one frame per `le`, turned into counts per bucket, the lowest first. */
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
    return seriesFrame({ ...series, values }, { ...answer, legend: answer.legend || "{{le}}" });
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

export async function transformed(frames: DataFrame[], transformations: any[]): Promise<DataFrame[]> {
  const known = (transformations ?? []).filter((one) => {
    const there = standardTransformersRegistry.getIfExists(one.id);
    if (!there) {
      console.error(`transformation "${one.id}" is not in @grafana/data and was left out`);
    }
    return there && !one.disabled;
  });
  return known.length ? lastValueFrom(transformDataFrame(known, frames)) : frames;
}

/** What a panel of Grafana assumes where its JSON is silent. */
const CUSTOM: Record<string, any> = {
  timeseries: {
    drawStyle: "line",
    lineInterpolation: "linear",
    lineWidth: 1,
    fillOpacity: 0,
    gradientMode: "none",
    showPoints: "auto",
    pointSize: 5,
    stacking: { mode: "none", group: "A" },
    axisPlacement: "auto",
    axisColorMode: "text",
    thresholdsStyle: { mode: "off" },
    spanNulls: false,
    hideFrom: { viz: false, legend: false, tooltip: false },
  },
  table: { align: "auto", cellOptions: { type: "auto" }, inspect: false },
  "state-timeline": { lineWidth: 1, fillOpacity: 70, spanNulls: false },
  "status-history": { lineWidth: 1, fillOpacity: 70 },
  barchart: { lineWidth: 1, fillOpacity: 80, axisPlacement: "auto" },
};
const PALETTE = new Set(["timeseries", "barchart", "piechart", "histogram"]);
const STANDARD = [
  ...["displayName", "unit", "min", "max", "decimals", "color", "noValue", "thresholds", "mappings", "links"],
  ...["filterable", "fieldMinMax", "actions", "description"],
];

/** The options that a panel and its overrides use, each taken as it is. */
function registryOf(defaults: any, overrides: any[]): FieldConfigOptionsRegistry {
  const custom = new Set(Object.keys(defaults.custom ?? {}));
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
    process: (value: any, context: any) =>
      id === "displayName" && value && context.replaceVariables
        ? context.replaceVariables(value, context.field?.state?.scopedVars)
        : id === "thresholds" && value
          ? withoutNull(value)
          : value,
    shouldApply: () => true,
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
  const given = panel.fieldConfig ?? { defaults: {}, overrides: [] };
  const defaults = {
    color: { mode: PALETTE.has(panel.type) ? "palette-classic" : "thresholds" },
    ...given.defaults,
    custom: { ...CUSTOM[panel.type], ...given.defaults?.custom },
    thresholds: withoutNull(
      given.defaults?.thresholds ?? {
        mode: "absolute",
        steps: [
          { color: "green", value: null },
          { color: "red", value: 80 },
        ],
      },
    ),
  };
  return { defaults, overrides: given.overrides ?? [] };
}

export function withOptions(
  frames: DataFrame[],
  panel: any,
  theme: GrafanaTheme2,
  replace: (text: string, scoped?: any) => string,
): DataFrame[] {
  const fieldConfig = fieldConfigOf(panel);
  const found = applyFieldOverrides({
    data: frames,
    fieldConfig,
    fieldConfigRegistry: registryOf(fieldConfig.defaults, fieldConfig.overrides),
    replaceVariables: replace as any,
    theme,
    timeZone: "utc",
  });
  // Tables and legends read the names that are kept here, not the columns' own.
  cacheFieldDisplayNames(found);
  return found;
}
