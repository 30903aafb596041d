#ifndef FASTDECODE_TOOLS_LATENCY_RESULT_H_
#define FASTDECODE_TOOLS_LATENCY_RESULT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/latency/distribution.h"

namespace fastdecode {

// What `fastdecode latency` has found out, before it is printed or exported: plain data, made by analysis.h, findings.h and
// requests.h, read by text.h and the exporters. All times are ns unless the name says otherwise.

// Where a micro-batch can be while a token of it is made. Together these partition the time from the end of its step
// before (or from when it got its first row) to the end of its step.
enum class Place : uint8_t {
  kBoundary,   // between two steps, while the pipeline is at other micro-batches
  kScheduler,  // held: events not taken
  kCompose,    // step put together, rosters out
  kStage,      // S-Part
  kPost,       // hops posted
  kWire,       // both ways of the last hop to come back, and what cannot be told from it
  kQueue,      // it waited at its home for the leader
  kPrepare,    // at that home: roster, pages, plan
  kAppend,
  kAttend,
  kMerge,
  kTeam,       // leader done, others of the team not
  kPickup,     // the reply was there, and the pipeline at other micro-batches
  kFinish,     // tokens judged
};
inline constexpr int kPlaces = 14;
// "boundary", "S-Part", "wire", "home: attend", ...: one or two words, for tables.
const char* PlaceName(Place place);

// One kind of duration, wherever in the machine it was.
struct Phase {
  std::string name;          // "S-Part stage", "GEMM qkv", "hop", "attend", "wire", ...
  std::string where;         // "engine", "home 1"
  Distribution ns;
  double share = 0;          // of the time of all recorded tokens (of phases on the critical path; else 0)
  std::string note;          // "upper bound: ...", or empty
};

// The mean token, taken apart. The parts and the residual sum to token_ns.
struct CriticalPath {
  struct Part {
    Place place = Place::kBoundary;
    double mean_ns = 0;
    double share = 0;              // of token_ns
    int home = -1;                 // where most of it was; -1: the engine
  };
  size_t tokens = 0;
  double token_ns = 0;             // mean
  std::vector<Part> parts;         // in order of Place; those of 0 ns left out
  double residual_ns = 0;          // what no part accounts for
  double wire_uncertain_ns = 0;    // of kWire and kQueue: told apart by the link's minimum round trip alone
};

// Idle time of the S-Part or of a home, and why.
struct Bubble {
  std::string where;       // "S-Part", "home 0"
  std::string cause;       // "R late: home 1", "S late", "link", "scheduler", "home lost", "no requests"
  double ns = 0;           // in all
  double share = 0;        // of the recorded time
};

struct HomeFigures {
  int home = -1;
  std::string name;
  size_t hops = 0;
  double last_share = 0;        // of the hops of several homes, in which it was the last to come back
  double waited_for_ns = 0;     // mean over all hops: from the reply before the last until its own, when it was last
  double busy_share = 0;        // of the recorded time
  double kv_share = 0;          // of the KV bytes attended to
  double gb_per_s = 0;          // KV bytes over its work
  double min_round_trip_ns = 0; // least of (hop - work - queue - pickup): the link's, with all software
  double clock_offset_ns = 0;   // home - engine, at the recording's middle, modulo 2^32 ns
  double clock_drift_ppm = 0;
  double clock_bound_ns = 0;    // the offset is right within this
};

// What was reached of what is possible.
struct Achieved {
  std::string what;        // "KV read, home 0", "weights read, S-Part", "GEMM, S-Part", "wire, home 1"
  double achieved = 0;
  double possible = 0;     // 0: unknown
  std::string unit;        // "GB/s", "GFLOP/s"
  std::string possible_by; // kReadTest, "line rate of mlx5_0 port 1", ...
  std::string note = "";   // "more than DRAM: ..."
};
inline constexpr char kReadTest[] = "read test of the same cores";
// Says it of a figure that is more than the possible_by of memory that no cache holds.
void NoteCache(Achieved* achieved);

// One token's way, for reading.
struct TokenStory {
  uint64_t id = 0;
  uint32_t index = 0;
  uint32_t step = 0;
  int micro_batch = 0;
  uint64_t start_ns = 0, end_ns = 0;
  std::array<uint64_t, kPlaces> place_ns{};
  struct Longest {         // its longest single spans
    Place place;
    int layer;             // -1: none
    int home;              // -1: none
    uint64_t start_ns, ns;
  };
  std::vector<Longest> longest;  // longest first, at most 5
};

// What is wrong, said in one line.
struct Finding {
  std::string phase;          // "attend", "wire", "GEMM", "placement", "scheduler", ...
  int home = -1;              // -1: none, or all
  int layer = -1;             // -1: none, or all
  std::string kind;           // "slower", "bandwidth", "stalls", "outliers", "unbalanced", "pause"
  double amount = 0;          // in `unit`
  std::string unit;           // "ns", "ratio"
  double share = 0;           // outliers: of hops; stalls: of time. Else 0
  double period_ns = 0;       // stalls: between two
  double cost_ns = 0;         // of the mean token, about
  std::string line;           // "home 1: attend takes 50.2 us longer a hop than at the other homes, whatever it reads"
};

// Requests by one way of counting their starts.
struct RequestFigures {
  std::string start;          // "intended", "submitted"
  size_t requests = 0;        // that were answered within the recording
  size_t failed = 0;
  size_t unfinished = 0;      // when it ended, or when their callers gave up
  Distribution ttft_ns, tpot_ns, itl_ns, e2e_ns;
};

struct SloVerdict {
  std::string text;           // "ttft:400ms,p90"
  double limit_ns = 0;
  double share = 0;           // 0.9
  std::optional<double> got_ns;  // nothing: too few samples
  bool met = false;
  bool at_least = false;         // the percentile lies among those that have not ended: it is got_ns or more
  double silent_ns = 0;          // longer than the limit, the engine did nothing when the recording ended
};

struct LatencyResult {
  static constexpr int kSchemaVersion = 2;
  std::string command;                  // "step", "attach"
  nlohmann::json provenance;            // of the measuring machine
  nlohmann::json engine;                // fd_record_describe
  nlohmann::json recording_cost;        // what recording itself cost, as measured
  uint64_t start_ns = 0, end_ns = 0;    // of the recording
  uint64_t events = 0, lost_events = 0;
  uint64_t steps = 0, tokens = 0;
  std::vector<Phase> phases;
  CriticalPath critical_path;
  double s_busy = 0, r_busy = 0, overlap = 0;  // as docs/GLOSSARY.md says; r_busy of the busiest home
  std::vector<Bubble> bubbles;          // largest first
  std::vector<HomeFigures> homes;
  std::vector<Achieved> achieved;
  std::vector<TokenStory> worst;        // longest first
  std::vector<RequestFigures> requests; // intended first where both are known
  std::vector<SloVerdict> slo;
  std::vector<Finding> findings;        // costliest first
  bool interrupted = false;             // the machine took so much from the engine's threads that the figures show it
  std::vector<std::string> warnings;    // "the machine took core 1 away for 12.3 ms (...)": what spoils figures
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_RESULT_H_
