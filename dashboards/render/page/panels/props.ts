/*
 * The input of every kind of panel.
 */
import { DataFrame, GrafanaTheme2, TimeRange } from "@grafana/data";
import { Mark } from "../document";

export interface PanelProps {
  panel: any;
  frames: DataFrame[];
  width: number;
  height: number;
  range: TimeRange;
  marks: Mark[];
  theme: GrafanaTheme2;
}
