/*
 * The page's input: a board, and Prometheus's answers to its panels' queries, as dashboards/render/document.py writes it.
 */

/** One series as in Prometheus's HTTP API: [seconds, "value"] pairs. */
export interface Series {
  metric: Record<string, string>;
  values: Array<[number, string]>;
}

/** The answer to one target of a panel. */
export interface Answer {
  refId: string;
  expr: string;
  legend: string;
  format: string;
  step_ms: number;
  error: string;
  series: Series[];
}

/** A time span in which an annotation query has a value, in milliseconds. */
export interface Mark {
  colour: string;
  from: number;
  to: number;
}

export interface Variable {
  name: string;
  label: string;
  text: string;
}

export interface BoardDocument {
  board: any;
  theme: "dark" | "light";
  width: number;
  from: number;
  to: number;
  variables: Variable[];
  /** By the panel's id. */
  answers: Record<string, Answer[]>;
  marks: Mark[];
}
