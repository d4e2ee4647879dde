// The slow rank: in, the API's run; out, who is waited for, since when, and how much each rank, host and stage
// explains. Hosts and stages are left out where they would say what the ranks say.

import { $, attribute, field, keyed, put, text, width } from "./nodes.js";
import { percent, times } from "./numbers.js";
import { MEANINGS } from "./words.js";

const RANKS_SHOWN = 4;
const PLACES_SHOWN = 2;

export function drawStraggler(run) {
  const { culprit, because, slowdown, since_step: since } = run.straggler;
  const host = run.ranks.find((rank) => rank.rank === culprit)?.host;
  put($("straggler"), culprit === null
    ? { culprit: "none", host: "", because: slowdown === null ? "No step was reported by two ranks of a group." :
        "No single rank is slow: none exceeds the median of its group by 2 %." }
    : { culprit: `rank ${culprit}`, host: `on ${host || "an unnamed host"}`,
        because: `It spends more time in ${because}${MEANINGS[because] ? ` (${MEANINGS[because]})` : ""} ` +
          `than the median of its group${since === null ? "" : `, since step ${since}`}.` });
  text(field($("straggler"), "slowdown"), slowdown === null ? "" :
    `The run is ${times(slowdown)} slower than with the same work spread evenly.`);
  keyed($("shares"), "t-share", shares(run), (share) => share.who, (node, { who, share, title, apart }) => {
    put(node, { who, share: percent(share) });
    attribute(node, "title", `${title} caused ${percent(share)} of the waiting`);
    node.classList.toggle("apart", apart);
    width(field(node, "meter"), share);
  });
}

function shares({ straggler, ranks, pipeline }) {
  const hosts = new Set(ranks.map((rank) => rank.host)).size;
  const one = (who, share, i, title = who) => ({ who, share, title, apart: i === 0 });
  const places = (list, what) => list.slice(0, PLACES_SHOWN).map((place, i) =>
    one(`${what} ${place[what]}`, place.share, i, `all ranks of ${what} ${place[what]} together`));
  return [
    ...(straggler.culprit === null ? [] : straggler.shares.slice(0, RANKS_SHOWN)
      .map((share) => one(`rank ${share.rank}`, share.share, 1, `rank ${share.rank} on ${share.host}`))),
    ...(hosts > 1 && hosts < ranks.length ? places(straggler.hosts, "host") : []),
    ...(pipeline ? places(straggler.stages, "stage") : []),
  ];
}
