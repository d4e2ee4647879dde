/*
 * Text in Markdown or HTML, made safe by @grafana/data as Grafana's text panel does it.
 */
import { renderTextPanelMarkdown, textUtil } from "@grafana/data";
import { PanelProps } from "./props";

export function TextPanel({ panel, replace, width, height }: PanelProps) {
  const { content = "", mode = "markdown" } = panel.options ?? {};
  const filled = replace(content);
  const html = mode === "markdown" ? renderTextPanelMarkdown(filled) : textUtil.sanitize(filled);
  return (
    <div
      style={{ width, height, overflow: "hidden" }}
      className="markdown-html"
      dangerouslySetInnerHTML={{ __html: html }}
    />
  );
}
