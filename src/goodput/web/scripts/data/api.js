// Reads of the aggregator's JSON API.

export class Busy extends Error {}

// The JSON at `path` below api/v1/, null for HTTP 404. Throws Error with a message for the user; an abort is rethrown.
export async function getFromApi(path, signal) {
  const response = await fetch(`api/v1/${path}`, { signal, cache: "no-store" }).catch((error) => {
    throw error instanceof TypeError ? new Error("The aggregator does not answer: no connection.") : error;
  });
  document.getElementById("signin").hidden = response.status !== 401;
  if (response.status === 404) return null;
  if (response.status === 401) throw new Error("The aggregator requires a token: sign in.");
  if (response.status === 403) throw new Error("You may not see this: sign in with a token that may read it.");
  if (response.status === 503 || response.status === 429) {
    const { detail } = await response.json().catch(() => ({}));
    throw new Busy(`The aggregator is ${/^starting, \d+ %$/.test(detail) ? detail : "busy"}`);
  }
  if (!response.ok) throw new Error(`The aggregator answers with an error: HTTP ${response.status}.`);
  return response.json();
}

// The path of a run's account, or of a part of it, such as "timeline". A URL cannot have the names "." and ".." in its
// path.
export function runPath(name, part = "", query = "") {
  const isDots = name === "." || name === "..";
  const path = `runs/${isDots ? "-" : encodeURIComponent(name)}${part && `/${part}`}`;
  const parameters = [isDots && `run=${name}`, query].filter(Boolean);
  return parameters.length ? `${path}?${parameters.join("&")}` : path;
}
