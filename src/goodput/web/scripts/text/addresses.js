// Addresses of a run, of one of its ranks and of a stage of its pipeline within this page.

export const runAddress = (name) => `#run=${encodeURIComponent(name)}`;
export const rankAddress = (name, rank) => `${runAddress(name)}&rank=${rank}`;
export const stageAddress = (name, stage) => `${runAddress(name)}&stage=${stage}`;
