#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDERS_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDERS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/findings/pipeline_work.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// What findings.h puts together: one function per kind of fault, each looking at the same evidence.

// Something took a core now and then.
struct Stalls {
  enum class Core { kPipeline, kLeader, kTeam };
  Core core = Core::kPipeline;
  int home = -1;
  double ns = 0;      // one of them; where they are not regular the median
  double ns_max = 0;  // the longest
  bool regular = false;
  double period_ns = 0;           // between two, on average where they are not regular
  std::vector<uint64_t> ends_ns;  // when they were over
  double share = 0;               // of the recorded time
  // Something that happened until `at_ns` may be due to them.
  bool Explains(uint64_t at_ns) const;
};

// Of hops of one link, those whose wire time is known, and not only together with what they waited elsewhere. Where
// that is so of few, because the others were not waited for, these few may be so for having been late: then all, as far
// as one can see.
struct LinkHops {
  std::vector<const HopTimes*> hops;
  bool known = false;
};

// A recording as the finders see it.
// Thread: immutable. Bounded: by its recording.
class Evidence {
 public:
  Evidence(const Recording& recording, const Timeline& timeline);

  const Recording& recording;
  const Timeline& timeline;
  const PipelineWork pipeline;

  // Stretches of even length, in which medians are taken before they are compared.
  int blocks() const { return blocks_; }
  int BlockOf(uint64_t at_ns) const;
  // Steps that no prompt takes part in; all else is compared among these. By end.
  const std::vector<const StepTimes*>& decode_steps() const { return decode_steps_; }
  // Too short for comparisons, if false.
  bool long_enough() const;
  double seconds() const { return static_cast<double>(timeline.end_ns - timeline.start_ns) * 1e-9; }
  // The mean token of decode steps: since the token before. A step counts as often as it made tokens.
  double token_ns() const { return token_ns_; }

  // By layer, then home.
  std::span<const HopTimes> HopsOf(const StepTimes& step) const {
    return {timeline.hops.data() + step.first_hop, step.hops};
  }
  // By time.
  std::span<const PartTimes> PartsOf(const StepTimes& step) const;
  // Calls visit(hop) for the hops that decode steps had at `home`, by end of the step.
  template <typename Visit>
  void VisitHops(int home, const Visit& visit) const {
    for (const StepTimes* step : decode_steps_) {
      for (const HopTimes& hop : HopsOf(*step)) {
        if (hop.home == home) visit(hop);
      }
    }
  }
  // The home is on the engine's host, and has the engine's clock: its link is memory.
  bool InMemory(int home) const { return in_memory_[static_cast<size_t>(home)]; }

  // Hops that decode steps had at `home`, which say together how long its link usually takes.
  LinkHops HopsOfLink(int home) const;

  // What it costs the mean token that hop h of timeline.hops takes its last excess_ns[h]: less, as far as another reply
  // of its layer was as late, or the pipeline at other work. The sum is what they cost together.
  // [homes]: each time that of the home whose reply was waited for. Hops of decode steps count.
  std::vector<double> CostOf(const std::vector<double>& excess_ns) const;
  // The same, for all hops of home h.
  std::vector<double> CostOfHomes(const std::vector<double>& excess_ns) const;
  // The same, for all hops of one home alone.
  double CostOfHome(int home, double excess_ns) const;

 private:
  // By how much sooner a micro-batch would have gone on without the last excess_ns of its hops of one layer.
  double SavedOfLayer(std::span<const HopTimes> layer, const HopTimes& last, std::span<const double> excess_ns) const;

  int blocks_ = 0;
  std::vector<const StepTimes*> decode_steps_;
  std::vector<bool> in_memory_;  // [homes]
  double token_ns_ = 0;
};

std::vector<Stalls> FindStalls(const Evidence& evidence);
Finding DescribeStalls(const Evidence& evidence, const Stalls& stalls);

// kind "slower" and "bandwidth": a home's work in its hops.
std::vector<Finding> FindSlowHomes(const Evidence& evidence);
// kind "unbalanced".
std::vector<Finding> FindUnbalancedPlacement(const Evidence& evidence);
// kind "slower", phase "GEMM".
std::vector<Finding> FindSlowLayers(const Evidence& evidence);
// kind "slower", phase "wire": against the other links of their kind (over the network, in memory).
std::vector<Finding> FindSlowLinks(const Evidence& evidence);
// kind "outliers", phase "wire", except what stalls explain. Of links over the network.
std::vector<Finding> FindLateHops(const Evidence& evidence, const std::vector<Stalls>& stalls);
// kind "pause".
std::vector<Finding> FindPauses(const Evidence& evidence);

// kind "silence": times at which the whole engine stood still.
std::vector<Finding> FindStandstills(const Evidence& evidence);

// kind "loss": homes that were lost, and the pauses of their sequences.
std::vector<Finding> FindLosses(const Evidence& evidence);

// "0.8 ms of the mean token", or that it costs nothing.
std::string CostText(double cost_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDERS_H_
