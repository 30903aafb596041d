// FAST PATH (docs/FAST_PATH.md)
// Attention at homes whose threads the S-Part's are. Nothing here allocates, locks, logs or enters the kernel.
#include <algorithm>

#include "engine/spart/cpu/cpu_spart.h"
#include "numa/clock.h"

namespace fastdecode {

// Which stage homes the step has rows at.
void CpuSPart::FindStageRows(int micro_batch, const StepTable& table) {
  StepAttention& attention = step_attention_[static_cast<size_t>(micro_batch)];
  attention.homes.clear();
  attention.done_layers = 0;
  if (stage_homes_.empty()) return;
  for (int r = 0; r < table.rows; ++r) {
    const int home = table.homes[static_cast<size_t>(r)];
    const auto found = std::find_if(attention.homes.begin(), attention.homes.end(),
                                    [home](const StepAttention::Rows& rows) { return rows.home == home; });
    if (found != attention.homes.end()) {
      ++found->rows;
      continue;
    }
    // Nobody puts anything where a table has areas.
    const bool is_stage_home = table.home_areas[static_cast<size_t>(home)].send != nullptr &&
                               stage_homes_[static_cast<size_t>(home)].home != nullptr;
    if (is_stage_home) attention.homes.push_back({home, 1});  // reserved
  }
}

// Gets the layer's attention ready. False: there is none, or it is done.
bool CpuSPart::BeginAttention(int micro_batch, int layer, const StepTable& table) {
  StepAttention& attention = step_attention_[static_cast<size_t>(micro_batch)];
  if (attention.done_layers > layer) return false;
  attending_.clear();
  for (const StepAttention::Rows& rows : attention.homes) {
    if (table.home_areas[static_cast<size_t>(rows.home)].send == nullptr) continue;  // it was lost since
    const Attended& attended = stage_homes_[static_cast<size_t>(rows.home)];
    attended.home->Begin(micro_batch, table.step, layer, rows.rows);
    attending_.push_back(&attended);  // reserved
  }
  return !attending_.empty();
}

void CpuSPart::AttendWork(void* self, int t, int /*n*/) { static_cast<CpuSPart*>(self)->AttendShare(t); }

// Thread t's at all homes, in one order for all threads: those that two homes have in common wait for nobody who waits
// for them.
void CpuSPart::AttendShare(int t) {
  for (const Attended* attended : attending_) {
    const int member = attended->member[static_cast<size_t>(t)];
    if (member >= 0) attended->home->RunShare(member);
  }
}

void CpuSPart::EndAttention(int micro_batch, int layer) {
  for (const Attended* attended : attending_) attended->home->End();
  step_attention_[static_cast<size_t>(micro_batch)].done_layers = layer + 1;
}

void CpuSPart::AttendMeanwhile(int micro_batch, int stage, StepTable& table) {
  if (!BeginAttention(micro_batch, stage, table)) return;
  const uint64_t start_ns = NowNs();
  team_.Run(&CpuSPart::AttendWork, this);
  table.attend_ns += NowNs() - start_ns;
  EndAttention(micro_batch, stage);
}

}  // namespace fastdecode
