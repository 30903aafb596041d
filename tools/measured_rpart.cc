#include "tools/measured_rpart.h"

#include "kernels/isa.h"

namespace fastdecode {

MeasuredRPart::MeasuredRPart(RPartBench& bench)
    : kernel(bench.kernel_name()),
      memory(bench.memory().Describe()),
      huge_share(bench.memory().huge_share()),
      sequences(bench.sequences()) {}

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
          {"fragmented", options.fragmented}};
}

}  // namespace fastdecode
