// The causes of an account document in the order in which to act on them: what recurs before what is paid once.

// A document of an earlier version has only the order by size.
export function orderedCauses({ causes, advice_order: order = [] }) {
  const place = ({ state }) => (order.includes(state) ? order.indexOf(state) : order.length);
  return [...causes].sort((a, b) => place(a) - place(b));
}

export const leadingCause = (run) => orderedCauses(run)[0]?.state ?? null;
