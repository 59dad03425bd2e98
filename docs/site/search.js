// A pasted message has values of its reader's hosts, which are on no page, and Sphinx wants every word of a query. So search
// for the rule in brackets at the end of a finding; else for the words that the page has which has most of the rare ones.
var splitQuery = (query) => {
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
