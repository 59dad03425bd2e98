// The page about a subject comes first, also if its words are not those of the question: pattern, page, words to search for.
const MEANT = [
  [/^(oom|out of memory)$/i, "docs/troubleshooting", ["out", "memory"]],
  [/^jumbo/i, "docs/fabric", ["mtu"]],
  [/^mtu$/i, "docs/fabric"],
  [/^(api )?key$/i, "docs/gateway"],
  [/^uninstall/i, "docs/uninstall", ["remove"]],
  [/^(add|remove) a node$|^backup$/i, "docs/daily"],
  [/^swap$/i, "docs/prepare"],
  [/^wi-?fi$/i, "docs/prepare", ["wi", "fi"]],
  [/^(hugging ?face|hf) token$/i, "roles/models/README", ["token"]],
  [/^(grafana|dashboards?)$/i, "roles/monitoring/README"],
  [/^alerts?$/i, "docs/runbook"],
  [/^(argo ?cd|flux)$/i, "docs/gitops"],
  [/^(why tcp|socket fallback)$/i, "docs/why-tcp", ["tcp"]],
  [/^tokens per second$/i, "docs/published", ["tokens"]],
  [/^which models?( fits?)?$|^(one|two|three|four|eight) sparks?$/i, "docs/models", ["sparks"]],
  [/^support bundle$/i, "roles/support_bundle/README", ["support_bundle"]],
  [/^openshift$/i, "docs/existing"],
  [/^(kernel )?updates?$/i, "roles/update/README"],
  [/^gb10(_[a-z0-9]+)+$/, "docs/variables"],
];
var asked = "";
// A variable of a role begins with the role's name, and the role's page has it.
const ofRole = (page) => asked.startsWith(`${page.match(/^roles\/(\w+)\/README$/)?.[1] ?? " "}_`);
// Sphinx's own scores, with pages for readers before the generated reference.
var Scorer = {
  score: ([page, , , , score]) =>
    score + (ofRole(page) || MEANT.some(([pattern, meant]) => meant === page && pattern.test(asked)) ? 1000 : 0) - (page.startsWith("reference/plugins/") ? 12 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
// A pasted message has values of its reader's hosts, which are on no page, and Sphinx wants every word of a query. So search
// for the rule in brackets at the end of a finding; else for the words that the page has which has most of the rare ones.
var splitQuery = (query) => {
  asked = query.trim();
  const meant = MEANT.find(([pattern]) => pattern.test(asked));
  if (meant?.[2]) return meant[2];
  const rule = query.match(/\[(\w+(?:\.\w+)+)\]/);
  if (rule) return [rule[1]];
  const words = query.split(/[^\p{Letter}\p{Number}_]+/gu).filter((word) => word);
  if (words.length < 5) return words;
  const stemmer = new Stemmer();
  const pages = (word) => {
    const stem = stemmer.stemWord(word.toLowerCase());
    return Object.hasOwn(Search._index.terms, stem) ? [Search._index.terms[stem]].flat() : [];
  };
  const score = {};
  for (const word of words) for (const page of pages(word)) score[page] = (score[page] ?? 0) + 1 / pages(word).length;
  const best = Number(Object.keys(score).reduce((one, other) => (score[other] > score[one] ? other : one), 0));
  return words.filter((word) => pages(word).includes(best));
};
