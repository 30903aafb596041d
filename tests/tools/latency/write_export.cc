// write_export FORMAT: writes a made-up result to stdout, for programs that others wrote to read.
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "tests/tools/latency/made_up_result.h"
#include "tools/latency/export_json.h"
#include "tools/latency/export_prometheus.h"

int main(int argc, char** argv) {
  using namespace fastdecode;
  const std::string format = argc == 2 ? argv[1] : "";
  if (format == "json") {
    std::cout << JsonText(MadeUpResult());
  } else if (format == "json-empty") {
    std::cout << JsonText(LatencyResult());
  } else if (format == "prometheus") {
    std::cout << PrometheusText(MadeUpResult());
  } else if (format == "prometheus-empty") {
    std::cout << PrometheusText(LatencyResult());
  } else {
    std::fprintf(stderr, "usage: write_export json|json-empty|prometheus|prometheus-empty\n");
    return 2;
  }
  return std::cout.flush() ? 0 : 1;
}
