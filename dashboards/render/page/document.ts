/*
 * What the page is given: a board, and the answers of Prometheus to its panels' queries.
 *
 * dashboards/render/document.py writes it; the two files must agree.
 */

/** One series of an answer as Prometheus's HTTP API gives it: [seconds, "value"] pairs. */
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
  instant: boolean;
  step_ms: number;
  error: string;
  series: Series[];
}

/** Times that an annotation query marks, in milliseconds. */
export interface Mark {
  name: string;
  colour: string;
  from: number;
  to: number;
  title: string;
}

export interface Variable {
  name: string;
  label: string;
  text: string;
  hidden: boolean;
  value: string;
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
