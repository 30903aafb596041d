#ifndef FASTDECODE_TESTS_KERNELS_CUDA_STEP_FIXTURE_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_STEP_FIXTURE_H_

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/step_kernels.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {

inline int Pick(std::mt19937* random, int low, int high) { return std::uniform_int_distribution(low, high)(*random); }

// A step of `rows` rows, spread by lot over homes whose areas hold just them: rows of `send_elements` one way and
// `receive_elements` the other. Area contents are NaN at first.
struct StepRows {
  StepRows(std::mt19937* random, unsigned rows_in_step, int homes, int positions, ElementType wire,
           size_t send_elements, size_t receive_elements)
      : rows(rows_in_step) {
    std::vector<std::vector<unsigned>> of_home(static_cast<size_t>(homes));
    for (unsigned r = 0; r < rows_in_step; ++r) of_home[static_cast<size_t>(Pick(random, 0, homes - 1))].push_back(r);
    for (size_t h = 0; h < of_home.size(); ++h) {
      std::shuffle(of_home[h].begin(), of_home[h].end(), *random);
      for (size_t i = 0; i < of_home[h].size(); ++i) {
        rows[of_home[h][i]] = {.position = Pick(random, 0, positions - 1),
                               .home = static_cast<uint32_t>(h),
                               .home_row = static_cast<uint32_t>(i)};
      }
      send.push_back(std::make_unique<TypedArray>(wire, of_home[h].size() * send_elements));
      receive.push_back(std::make_unique<TypedArray>(wire, of_home[h].size() * receive_elements));
      areas.push_back({send.back()->data(), receive.back()->data()});
    }
  }

  void LoseHome(size_t home) { areas[home] = {}; }
  bool lost(size_t row) const { return areas[rows[row].home].receive == nullptr; }

  std::vector<StepRow> rows;
  std::vector<std::unique_ptr<TypedArray>> send, receive;  // [homes]
  std::vector<StepArea> areas;                             // [homes]
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_STEP_FIXTURE_H_
