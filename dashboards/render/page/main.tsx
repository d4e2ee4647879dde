/*
 * The page: a board of 24 columns drawn from a document (page/document.ts), at the width the document asks for.
 *
 * In: document.json beside the page. Out: the drawn board; `window.drawn` is true when every panel has had its
 * data and the layout is at rest, and everything that went wrong is in the console.
 */
import "@fontsource/roboto-mono/latin-400.css";
import "@fontsource/roboto-mono/latin-500.css";
import "uplot/dist/uPlot.min.css";
import { createTheme, dateTime, DataFrame, TimeRange, ThemeContext } from "@grafana/data";
import { GlobalStyles, PanelChrome } from "@grafana/ui";
import { useEffect, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";
import { BoardDocument } from "./document";
import { framesOf, transformed, withOptions } from "./frames";
import { Header } from "./header";
import { BarChartPanel } from "./panels/bars";
import { HeatmapPanel, StatesPanel } from "./panels/lanes";
import { PanelProps } from "./panels/props";
import { TablePanel } from "./panels/table";
import { TextPanel } from "./panels/text";
import { TimeseriesPanel } from "./panels/timeseries";
import { BarGaugePanel, StatPanel } from "./panels/values";
import { replacer } from "./replace";

// Grafana's grid: cells 30 pixels high, 8 pixels between panels.
const [CELL, GAP, MARGIN] = [30, 8, 16];

const KINDS: Record<string, (props: PanelProps) => any> = {
  timeseries: TimeseriesPanel,
  stat: StatPanel,
  bargauge: BarGaugePanel,
  table: TablePanel,
  barchart: BarChartPanel,
  text: TextPanel,
  heatmap: HeatmapPanel,
  "state-timeline": StatesPanel,
  "status-history": StatesPanel,
};

function Panel({
  panel,
  document,
  width,
  height,
  onReady,
}: {
  panel: any;
  document: BoardDocument;
  width: number;
  height: number;
  onReady: () => void;
}) {
  const theme = useTheme(document);
  const answers = document.answers[panel.id] ?? [];
  const replace = useMemo(() => replacer(document), [document]);
  const [frames, setFrames] = useState<DataFrame[] | null>(null);
  useEffect(() => {
    transformed(framesOf(answers), panel.transformations)
      .then((found) => setFrames(withOptions(found, panel, theme, replace)))
      .catch((problem) => {
        console.error(`panel ${panel.id} "${panel.title}": ${problem}`);
        setFrames([]);
      })
      .finally(onReady);
  }, []);
  const range: TimeRange = useMemo(() => {
    const [from, to] = [dateTime(document.from), dateTime(document.to)];
    return { from, to, raw: { from, to } };
  }, [document]);
  const errors = answers.map((one) => one.error).filter(Boolean);
  const Kind = KINDS[panel.type];
  return (
    <PanelChrome
      width={width}
      height={height}
      title={replace(panel.title ?? "")}
      description={panel.description ? () => panel.description : undefined}
      displayMode={panel.transparent ? "transparent" : "default"}
      statusMessage={errors.join("; ") || undefined}
      padding={panel.type === "table" ? "none" : "md"}
    >
      {(innerWidth, innerHeight) => {
        const props = {
          panel,
          frames: frames ?? [],
          width: innerWidth,
          height: innerHeight,
          range,
          marks: document.marks,
          theme,
          replace,
        };
        if (frames === null) {
          return null;
        }
        if (!Kind) {
          return <Message text={`a panel of the kind "${panel.type}" is drawn by Grafana only`} {...props} />;
        }
        // Those of one number say themselves that there is none.
        const says = ["stat", "bargauge", "text"].includes(panel.type);
        if (!says && !frames.some((frame) => frame.length > 0)) {
          return <Message text={panel.fieldConfig?.defaults?.noValue ?? "No data"} {...props} />;
        }
        return <Kind {...props} />;
      }}
    </PanelChrome>
  );
}

function Message({ text, width, height }: { text: string; width: number; height: number }) {
  return (
    <div
      style={{
        width,
        height,
        display: "flex",
        alignItems: "center",
        justifyContent: "center",
        textAlign: "center",
      }}
    >
      {text}
    </div>
  );
}

function useTheme(document: BoardDocument) {
  return useMemo(() => createTheme({ colors: { mode: document.theme } }), [document]);
}

function Board({ document }: { document: BoardDocument }) {
  const theme = useTheme(document);
  const panels = document.board.panels.filter((panel: any) => panel.type !== "row");
  const rows = document.board.panels.filter((panel: any) => panel.type === "row");
  const [ready, setReady] = useState(0);
  useEffect(() => {
    if (ready >= panels.length) {
      // Two frames and a little time: sizes are measured after the first drawing.
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
  const bottom = Math.max(...document.board.panels.map((panel: any) => panel.gridPos.y + panel.gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div
        id="board"
        style={{
          width: document.width,
          background: theme.colors.background.canvas,
          color: theme.colors.text.primary,
        }}
      >
        <Header document={document} />
        <div style={{ position: "relative", height: bottom * (CELL + GAP) + MARGIN }}>
          {rows.map((row: any) => (
            <div
              key={row.id}
              style={{ position: "absolute", ...box(row.gridPos), lineHeight: `${CELL}px`, fontWeight: 500 }}
            >
              {row.title}
            </div>
          ))}
          {panels.map((panel: any) => {
            const place = box(panel.gridPos);
            return (
              <div key={panel.id} id={`panel-${panel.id}`} style={{ position: "absolute", ...place }}>
                <Panel
                  panel={panel}
                  document={document}
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
