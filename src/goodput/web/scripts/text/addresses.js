// Addresses of a run and of one of its ranks within this page.

export const runAddress = (name) => `#run=${encodeURIComponent(name)}`;
export const rankAddress = (name, rank) => `${runAddress(name)}&rank=${rank}`;
