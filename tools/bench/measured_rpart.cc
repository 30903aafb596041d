#include "tools/bench/measured_rpart.h"

#include <cstdio>

#include "kernels/isa.h"

namespace fastdecode {

namespace {

double HeldShare(const RPartBench::PageUse& pages) { return static_cast<double>(pages.held) / pages.total; }

}  // namespace

MeasuredRPart::MeasuredRPart(RPartBench& bench)
    : kernel(bench.kernel_name()),
      memory(bench.memory().Describe()),
      huge_share(bench.memory().huge_share()),
      sequences(bench.sequences()),
      pages(bench.page_use()) {}

nlohmann::json ToJson(const MeasuredRPart& measured, const RPartBenchOptions& options, const Topology& topology) {
  return {{"cpu", topology.cpu_model},
          {"isa", IsaName(options.isa)},
          {"kernel", measured.kernel},
          {"cores", options.cores},
          {"threads", options.cores.size()},
          {"node", options.node},
          {"kv_type", KvTypeName(options.kv_type)},
          {"heads", options.heads},
          {"kv_heads", options.kv_heads},
          {"head_size", options.head_size},
          {"layers", options.layers},
          {"sequences", measured.sequences},
          {"memory", measured.memory},
          {"huge_share", measured.huge_share},
          {"pages", measured.pages.total},
          {"pages_used", measured.pages.used},
          {"pages_held", measured.pages.held},
          {"held_share", HeldShare(measured.pages)},
          {"fragmented", options.fragmented}};
}

std::string PagesText(const MeasuredRPart& measured) {
  const RPartBench::PageUse& pages = measured.pages;
  char text[128];
  std::snprintf(text, sizeof(text), "%u pages: %u used, %u held unused (%.1f %%)", pages.total, pages.used, pages.held,
                100 * HeldShare(pages));
  return text;
}

}  // namespace fastdecode
