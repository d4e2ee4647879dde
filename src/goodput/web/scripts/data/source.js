// Where the page's data comes from: the aggregator's API, or the file that the page was written to.

import { getFromApi } from "./api.js";
import { file, getFromFile } from "./file.js";

// get(path, signal): the JSON at a path below api/v1/, null where there is none.
export const get = file === null ? getFromApi : getFromFile;
export const isLive = file === null;
