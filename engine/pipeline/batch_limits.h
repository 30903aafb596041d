#ifndef FASTDECODE_ENGINE_PIPELINE_BATCH_LIMITS_H_
#define FASTDECODE_ENGINE_PIPELINE_BATCH_LIMITS_H_

#include <cstdint>

#include "engine/schedule/step_model.h"

namespace fastdecode {

// Limits of a pipeline, fixed when it is made.
struct BatchLimits {
  int micro_batches = 2;            // K
  uint32_t rows_max = 512;          // rows of one step of one micro-batch (decode rows + chunks)
  uint32_t sequences_max = 256;     // sequences of one micro-batch, <= rows_max
  uint32_t chunk_tokens_max = 256;  // prompt tokens of one step of one micro-batch
  uint32_t ready_max = 4096;        // sequences taken over and waiting
  bool open_pages = false;          // whether the KV type has them: HasOpenPages
  bool near_first = true;           // near homes read so much faster that they are filled first: those of a GPU
  bool adapts = false;              // without near homes, as many micro-batches are used as are fastest
  uint32_t active_max = 0;          // sequences of all micro-batches; 0: as many as they have room for
  // The prefix cache: sequences that have left and are kept (0: there is no cache), pages that can be found, and
  // whether homes may have a kernel of their own for rows of prompts (decision 0021).
  uint32_t cached_max = 0;
  uint32_t cached_blocks_max = 1 << 12;
  bool prompts_have_kernel = false;
  // What steps read, to know how long they take where read rates are known; 0: not known.
  int layers = 1;
  uint64_t weight_bytes = 0;  // of the S-Part, in one decode step
  uint64_t page_bytes = 0;    // of KV, all layers
  // What steps cost by a calibration of such an engine. Lent until the pipeline is made; null: there is none.
  const StepCosts* calibrated = nullptr;

  uint32_t active() const { return active_max > 0 ? active_max : sequences_max * micro_batches; }
  // Holders of pages: a sequence whose prompt is pushed holds pages twice.
  uint32_t holders() const { return 2 * active() + cached_max; }
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_BATCH_LIMITS_H_
