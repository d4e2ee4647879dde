/*
 * The page: draws a board of 24 columns from document.json (page/document.ts) at the width that it requests.
 *
 * `window.drawn` is true when every panel is drawn and the layout is stable; errors are written to the console.
 */
import "@fontsource/roboto-mono/latin-400.css";
import "@fontsource/roboto-mono/latin-500.css";
import "uplot/dist/uPlot.min.css";
import { createTheme, dateTime, DataFrame, GrafanaTheme2, ThemeContext } from "@grafana/data";
import { GlobalStyles, Icon, PanelChrome, useTheme2 } from "@grafana/ui";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { BoardDocument } from "./document";
import { framesOf, transformed, withOptions } from "./frames";
import { Header } from "./header";
import { BarChartPanel } from "./panels/bars";
import { HeatmapPanel, StatesPanel } from "./panels/lanes";
import { PanelProps } from "./panels/props";
import { TablePanel } from "./panels/table";
import { TimeseriesPanel } from "./panels/timeseries";
import { BarGaugePanel, StatPanel } from "./panels/values";

// Grafana's grid: cells 30 pixels high, 8 pixels between panels.
const [CELL, GAP, MARGIN] = [30, 8, 16];

const KINDS: Record<string, (props: PanelProps) => any> = {
  timeseries: TimeseriesPanel,
  stat: StatPanel,
  bargauge: BarGaugePanel,
  table: TablePanel,
  barchart: BarChartPanel,
  heatmap: HeatmapPanel,
  "state-timeline": StatesPanel,
};

interface Props {
  panel: any;
  document: BoardDocument;
  theme: GrafanaTheme2;
  width: number;
  height: number;
  onReady: () => void;
}

function Panel({ panel, document, theme, width, height, onReady }: Props) {
  const answers = document.answers[panel.id];
  const [frames, setFrames] = useState<DataFrame[] | null>(null);
  useEffect(() => {
    transformed(framesOf(answers), panel.transformations)
      .then((found) => setFrames(withOptions(found, panel, theme)))
      .catch((problem) => {
        console.error(`panel ${panel.id} "${panel.title}": ${problem}`);
        setFrames([]);
      })
      .finally(onReady);
  }, []);
  const [from, to] = [dateTime(document.from), dateTime(document.to)];
  const errors = answers.map((one) => one.error).filter(Boolean);
  const Kind = KINDS[panel.type];
  return (
    <PanelChrome
      width={width}
      height={height}
      title={panel.title}
      description={() => panel.description}
      statusMessage={errors.join("; ") || undefined}
      padding={panel.type === "table" ? "none" : "md"}
    >
      {(innerWidth, innerHeight) => {
        if (frames === null) {
          return null;
        }
        const size = { width: innerWidth, height: innerHeight };
        // stat and bargauge show the text for no data themselves.
        if (!["stat", "bargauge"].includes(panel.type) && !frames.some((frame) => frame.length > 0)) {
          const centred = { display: "grid", placeItems: "center", textAlign: "center" } as const;
          return <div style={{ ...size, ...centred }}>{panel.fieldConfig.defaults.noValue}</div>;
        }
        const range = { from, to, raw: { from, to } };
        return <Kind {...{ panel, frames, range, theme, ...size }} marks={document.marks} />;
      }}
    </PanelChrome>
  );
}

/** The title of a collapsed row, as Grafana shows it: its panels are drawn only after a click on it. */
function CollapsedRow({ row }: { row: any }) {
  const { colors } = useTheme2();
  return (
    <div style={{ display: "flex", alignItems: "center", gap: 8, height: "100%", fontWeight: 500 }}>
      <Icon name="angle-right" /> {row.title}
      <span style={{ color: colors.text.secondary, fontWeight: 400 }}>
        ({row.panels.length} {row.panels.length === 1 ? "panel" : "panels"})
      </span>
    </div>
  );
}

function Board({ document }: { document: BoardDocument }) {
  const [theme] = useState(() => createTheme({ colors: { mode: document.theme } }));
  const all = document.board.panels;
  const rows = all.filter((one: any) => one.type === "row");
  const panels = all.filter((one: any) => one.type !== "row");
  const [ready, setReady] = useState(0);
  useEffect(() => {
    if (ready >= panels.length) {
      // Sizes are measured after the first drawing.
      window.document.fonts.ready.then(() => setTimeout(() => ((window as any).drawn = true), 1000));
    }
  }, [ready]);
  const column = (document.width - 2 * MARGIN - 23 * GAP) / 24;
  const box = ({ x, y, w, h }: any) => ({
    left: MARGIN + x * (column + GAP),
    top: y * (CELL + GAP),
    width: w * column + (w - 1) * GAP,
    height: h * CELL + (h - 1) * GAP,
  });
  const bottom = Math.max(...all.map((one: any) => one.gridPos.y + one.gridPos.h));
  const { background, text } = theme.colors;
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div
        id="board"
        style={{ width: document.width, background: background.canvas, color: text.primary }}
      >
        <Header document={document} />
        <div style={{ position: "relative", height: bottom * (CELL + GAP) + MARGIN }}>
          {rows.map((row: any) => (
            <div key={row.id} id={`row-${row.id}`} style={{ position: "absolute", ...box(row.gridPos) }}>
              <CollapsedRow row={row} />
            </div>
          ))}
          {panels.map((panel: any) => {
            const place = box(panel.gridPos);
            return (
              <div key={panel.id} id={`panel-${panel.id}`} style={{ position: "absolute", ...place }}>
                <Panel
                  {...{ panel, document, theme }}
                  width={place.width}
                  height={place.height}
                  onReady={() => setReady((count) => count + 1)}
                />
              </div>
            );
          })}
        </div>
      </div>
    </ThemeContext.Provider>
  );
}

fetch("document.json")
  .then((answer) => answer.json())
  .then((document) =>
    createRoot(window.document.getElementById("root")!).render(<Board document={document} />),
  );
