/*
 * Variables in titles, names and texts. Those in queries are filled in before Prometheus is asked.
 */
import { BoardDocument } from "./document";

export function replacer(document: BoardDocument): (text: string, scoped?: any) => string {
  const texts = new Map(document.variables.map((one) => [one.name, one.text]));
  return (text, scoped) =>
    text.replace(/\$(\w+)|\$\{([\w.]+)(?::\w+)?(?:\["?([^\]"]+)"?\])?\}/g, (whole, plain, braced) => {
      const name = plain ?? braced;
      const [first, ...path] = name.split(".");
      const own = scoped?.[first]?.value;
      const found =
        own !== undefined ? path.reduce((one: any, key: string) => one?.[key], own) : texts.get(name);
      return found === undefined || typeof found === "object" ? whole : String(found);
    });
}
