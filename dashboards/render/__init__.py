"""Pictures of the generated boards: real queries, drawn by Grafana's own components in headless Chromium.

`variables` and `queries` do what Grafana does between a board and Prometheus, `document` puts the answers into one
JSON document, and the page under `page/` (TypeScript, bundled by build.mjs, photographed by shoot.mjs) draws it.
`history` is a Prometheus with a simulated cluster's last hours. The page needs npm's packages (half a gigabyte), the
rest does not.
"""
