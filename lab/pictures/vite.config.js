export default {esbuild: {jsx: "automatic"}, define: {global: "globalThis"}, build: {target: "esnext"}};
