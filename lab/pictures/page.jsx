// Shows one dashboard with the published parts of Perses: ?dashboard=FILE&prometheus=URL&start=MS&end=MS
import {CssBaseline, ThemeProvider} from "@mui/material";
import {ChartsProvider, SnackbarProvider, generateChartsTheme, getTheme} from "@perses-dev/components";
import {ViewDashboard} from "@perses-dev/dashboards";
import {PluginRegistry, ValidationProvider, dynamicImportPluginLoader} from "@perses-dev/plugin-system";
import * as prometheus from "@perses-dev/prometheus-plugin";
import * as stat from "@perses-dev/stat-chart-plugin";
import * as states from "@perses-dev/status-history-chart-plugin";
import * as timeseries from "@perses-dev/timeseries-chart-plugin";
import {QueryClient, QueryClientProvider} from "@tanstack/react-query";
import {createRoot} from "react-dom/client";
import {BrowserRouter} from "react-router-dom";
import {QueryParamProvider} from "use-query-params";
import {ReactRouter6Adapter} from "use-query-params/adapters/react-router-6";

const asked = new URLSearchParams(location.search);
const source = {
  kind: "GlobalDatasource",
  metadata: {name: "prometheus"},
  spec: {default: true, plugin: {kind: "PrometheusDatasource", spec: {directUrl: asked.get("prometheus"), scrapeInterval: "15s"}}},
};
const sources = {
  getDatasource: async () => undefined,
  getGlobalDatasource: async () => source,
  listDatasources: async () => [],
  listGlobalDatasources: async () => [source],
  buildProxyUrl: () => "",
};
const plugins = dynamicImportPluginLoader(
  [prometheus, stat, states, timeseries].map(one => ({resource: one.getPluginModule(), importPlugin: async () => one})),
);
const theme = getTheme("light");
const dashboard = await (await fetch(asked.get("dashboard"))).json();

createRoot(document.body.appendChild(document.createElement("div"))).render(
  <BrowserRouter><QueryParamProvider adapter={ReactRouter6Adapter}><ThemeProvider theme={theme}><CssBaseline />
    <ChartsProvider chartsTheme={generateChartsTheme(theme, {})}><SnackbarProvider>
      <PluginRegistry pluginLoader={plugins} defaultPluginKinds={{Panel: "TimeSeriesChart", TimeSeriesQuery: "PrometheusTimeSeriesQuery"}}>
        <QueryClientProvider client={new QueryClient()}><ValidationProvider>
          <ViewDashboard dashboardResource={dashboard} datasourceApi={sources} dashboardTitleComponent={<h3 style={{margin: 0}}>{dashboard.spec.display.name}</h3>}
            isReadonly isVariableEnabled isDatasourceEnabled={false} />
        </ValidationProvider></QueryClientProvider>
      </PluginRegistry>
    </SnackbarProvider></ChartsProvider>
  </ThemeProvider></QueryParamProvider></BrowserRouter>,
);
