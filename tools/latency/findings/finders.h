#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDERS_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// What findings.h puts together: one function per kind of fault, each looking at the same evidence.

// Something took a core now and then.
struct Stalls {
  enum class Core { kPipeline, kLeader, kTeam };
  Core core = Core::kPipeline;
  int home = -1;
  double ns = 0;
  bool regular = false;
  double period_ns = 0;           // between two, on average where they are not regular
  std::vector<uint64_t> ends_ns;  // when they were over
  double share = 0;               // of the recorded time
  // Something that happened until `at_ns` may be due to them.
  bool Explains(uint64_t at_ns) const;
};

// A recording as the finders see it.
// Thread: immutable. Bounded: by its recording.
class Evidence {
 public:
  Evidence(const Recording& recording, const Timeline& timeline);

  const Recording& recording;
  const Timeline& timeline;

  // Stretches of even length, in which medians are taken before they are compared.
  int blocks() const { return blocks_; }
  int BlockOf(uint64_t at_ns) const;
  // Steps that no prompt takes part in; all else is compared among these. By end.
  const std::vector<const StepTimes*>& decode_steps() const { return decode_steps_; }
  // Too short for comparisons, if false.
  bool long_enough() const;
  double seconds() const { return static_cast<double>(timeline.end_ns - timeline.start_ns) * 1e-9; }
  // What the mean decode step takes from the end of the one before.
  double token_ns() const { return token_ns_; }

  // Of a decode step.
  const HopTimes* HopsBegin(const StepTimes& step) const { return timeline.hops.data() + step.first_hop; }
  const HopTimes* HopsEnd(const StepTimes& step) const { return HopsBegin(step) + step.hops; }

  // What a hop's taking `excess_ns` too long costs the mean token, if that is so for all hops of a home.
  double CostOfHops(int home, double excess_ns) const;

 private:
  int blocks_ = 0;
  std::vector<const StepTimes*> decode_steps_;
  double token_ns_ = 0;
};

// What the hop's token waited for because of its last `excess_ns`: nothing, if another reply was later or the pipeline
// was not there yet.
double SavedWithout(const HopTimes& hop, double excess_ns);

std::vector<Stalls> FindStalls(const Evidence& evidence);
Finding DescribeStalls(const Evidence& evidence, const Stalls& stalls);

// kind "slower" and "bandwidth": a home's work in its hops.
std::vector<Finding> FindSlowHomes(const Evidence& evidence);
// kind "unbalanced".
std::vector<Finding> FindUnbalancedPlacement(const Evidence& evidence);
// kind "slower", phase "GEMM".
std::vector<Finding> FindSlowLayers(const Evidence& evidence);
// kind "slower", phase "wire".
std::vector<Finding> FindSlowLinks(const Evidence& evidence);
// kind "outliers", phase "wire", except what stalls explain.
std::vector<Finding> FindLateHops(const Evidence& evidence, const std::vector<Stalls>& stalls);
// kind "pause".
std::vector<Finding> FindPauses(const Evidence& evidence);

// "0.8 ms of the mean token", or that it costs nothing.
std::string CostText(double cost_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDERS_H_
