"""Pictures of the generated boards: real queries, drawn by Grafana's own components in headless Chromium.

`variables` fills a board's variables, `queries` asks Prometheus as Grafana would, `document` puts both into one
file of JSON, `history` makes a Prometheus with a simulated cluster's day to ask, and the page under `page/`
(TypeScript, bundled by build.mjs, photographed by shoot.mjs) draws the document. The page needs the packages
of package.json (`npm ci`, half a gigabyte); everything before it needs Python and Prometheus alone.

    python -m dashboards.render dashboards/generated/goodput-run.json --prometheus http://127.0.0.1:9090 \\
        --variable run=r1 --out run.png
"""
