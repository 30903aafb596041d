#ifndef FASTDECODE_KERNELS_CUDA_SIMT_H_
#define FASTDECODE_KERNELS_CUDA_SIMT_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/float_types.h"

#if !defined(__CUDACC__)
#include <cmath>
#include <source_location>

#include "numa/check.h"
#endif

// What GPU kernels are written in: blocks of threads, warps of 32, and few primitives, under names of our own. nvcc
// makes device code of it. Any other compiler makes functions that one emulated thread runs; whoever links them
// supplies the threads (the functions that are declared only, tests/kernels/cuda/simt_emulator.h), so that indexing and
// synchronisation of the very source that ships are tested where there is no GPU.
//
// Rules that hold on both: every thread of a block comes to the same SyncBlock, every thread of a warp to the same
// shuffle; no thread returns before others of its block that still synchronise.

#if defined(__CUDACC__)
#define FD_KERNEL __global__
#define FD_BLOCK_MAX(threads) __launch_bounds__(threads)  // of a kernel whose blocks have so many threads at most
#define FD_BLOCKS_MIN(threads, blocks) __launch_bounds__(threads, blocks)  // and of which so many fit side by side
#define FD_ARGS const __grid_constant__  // before a kernel's arguments: a reference to them makes no copy for a thread
#define FD_DEVICE __device__ __forceinline__
#define FD_DEVICE_CALL __device__ __noinline__  // what is long: ptxas' time grows with a kernel's length
#define FD_UNROLL(times) _Pragma(#times)        // before a loop: FD_UNROLL(unroll 4)
#else
#define FD_KERNEL inline
#define FD_BLOCK_MAX(threads)
#define FD_BLOCKS_MIN(threads, blocks)
#define FD_ARGS const
#define FD_DEVICE inline
#define FD_DEVICE_CALL inline
#define FD_UNROLL(times)
#endif

namespace fastdecode::simt {

inline constexpr unsigned kWarp = 32;
inline constexpr float kLog2E = 1.44269504088896341f;

#if defined(__CUDACC__)

FD_DEVICE unsigned Thread() { return threadIdx.x; }
FD_DEVICE unsigned Threads() { return blockDim.x; }
FD_DEVICE unsigned BlockX() { return blockIdx.x; }
FD_DEVICE unsigned BlockY() { return blockIdx.y; }
FD_DEVICE unsigned BlocksX() { return gridDim.x; }
FD_DEVICE unsigned BlocksY() { return gridDim.y; }
FD_DEVICE void SyncBlock() { __syncthreads(); }
FD_DEVICE void SyncWarp() { __syncwarp(); }
// From Hopper on a kernel may begin while the one before still runs (programmatic dependent launch): before this it
// touches nothing that the one before writes, or reads and this one writes. Every thread of every kernel comes here.
FD_DEVICE void AwaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel behind may begin when a thread of each block of this one came here, or the block is over. Behind
// AwaitKernelBefore: so while a kernel has not awaited the one before, of what came before it that one alone may still
// write, if both are ours.
FD_DEVICE void LetKernelBehindBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// The block's dynamic shared memory, 128-byte aligned, with what the launch asked for.
FD_DEVICE std::byte* SharedMemory() {
  extern __shared__ __align__(128) uint4 shared_memory[];
  return reinterpret_cast<std::byte*>(shared_memory);
}
// `value` of another lane of the warp.
template <class T>
FD_DEVICE T ShuffleXor(T value, unsigned mask) {
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}
template <class T>
FD_DEVICE T ShuffleFrom(T value, unsigned lane) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
}
// Whether it is so for any thread of the warp.
FD_DEVICE bool AnyOfWarp(bool is_so) { return __any_sync(0xffffffffu, is_so) != 0; }
// The value before. Relaxed, device scope.
FD_DEVICE uint32_t AtomicAdd(uint32_t* word, uint32_t add) { return atomicAdd(word, add); }
FD_DEVICE uint64_t AtomicAdd(uint64_t* word, uint64_t add) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(add));
}
// The word becomes `value` if that is more. Relaxed, device scope.
FD_DEVICE void AtomicMax(uint64_t* word, uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}
// Adds one and gives the value before. What threads did before they counted is seen by who counts later. Device scope;
// what is seen so, a release store shows to CPUs, too.
FD_DEVICE uint32_t CountIn(uint32_t* word) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  return before;
}
FD_DEVICE void StoreReleaseSystem(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
FD_DEVICE uint64_t LoadAcquireSystem(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
// A clock of this device in ns, which moves at least every few microseconds.
FD_DEVICE uint64_t DeviceNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
// Between two looks at a word of the host's memory.
FD_DEVICE void Pause() { __nanosleep(100); }

// Conversions are the hardware's own; cuda_bf16.h and cuda_fp16.h would double what nvcc reads.
FD_DEVICE float ToFloat(float value) { return value; }
FD_DEVICE float ToFloat(Bf16 value) { return __uint_as_float(static_cast<uint32_t>(value) << 16); }
FD_DEVICE float ToFloat(Fp16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
// To nearest even. What is too large becomes fp16's largest, as ToFp16 has it; NaN stays.
template <class T>
FD_DEVICE T FromFloat(float value) {
  [[maybe_unused]] uint16_t bits;
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  } else {
    asm("cvt.rn.satfinite.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return Fp16{bits};
  }
}
FD_DEVICE float FloatOfBits(uint32_t bits) { return __uint_as_float(bits); }
FD_DEVICE uint32_t BitsOf(float value) { return __float_as_uint(value); }
FD_DEVICE float Exp(float value) { return expf(value); }
// What exp2f and log2f are made of, without their care for numbers below 2^-126, which are zeros here. Within 2 ulp,
// but Log2 of 1/2 to 2 within 2^-22 (NVIDIA, CUDA C++ Programming Guide, "Mathematical Functions": exp2f and __log2f).
FD_DEVICE float Exp2(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
FD_DEVICE float Log2(float value) {
  float log;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(value));
  return log;
}
FD_DEVICE float Tanh(float value) { return tanhf(value); }
FD_DEVICE float Erf(float value) { return erff(value); }
// a / b within 2 ulp; 0 where |b| is more than 2^126 and a finite.
FD_DEVICE float Quotient(float a, float b) { return __fdividef(a, b); }
FD_DEVICE float Larger(float a, float b) { return fmaxf(a, b); }  // of a NaN and a number, the number
// a * b + c, rounded once on GPUs: the same bits in whatever kernel it stands.
FD_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FD_DEVICE void ExpectAligned(bool) {}  // a GPU sees for itself
// What makes `value` is done before what comes behind, which else may take a load with it behind its branches. Waits
// for nothing.
FD_DEVICE void KeepBefore(uint32_t& value) { asm volatile("" : "+r"(value)); }

// Copies of 16 bytes each from device to shared memory, which go on while the thread does other work. Those since the
// last CommitCopies are a group; WaitCopies<n> comes back when all of this thread's groups but the last n are there,
// which other threads know after a SyncBlock, those of its warp after a SyncWarp. zeros: nothing is read, zeros are
// written. Both addresses are multiples of 16.
FD_DEVICE void CopyAsync(std::byte* shared, const std::byte* from, bool zeros) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(zeros ? 0 : 16) : "memory");
}
FD_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Groups>
FD_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

#else

// Const: while a kernel runs it is one thread, so that a loop need not ask again.
[[gnu::const]] unsigned Thread();
[[gnu::const]] unsigned Threads();
[[gnu::const]] unsigned BlockX();
[[gnu::const]] unsigned BlockY();
[[gnu::const]] unsigned BlocksX();
[[gnu::const]] unsigned BlocksY();
[[gnu::const]] std::byte* SharedMemory();
// `here`: where in a kernel, for who reports that threads missed one another.
using Site = std::source_location;
void SyncBlock(Site here = Site::current());
void SyncWarp(Site here = Site::current());
void AwaitKernelBefore(Site here = Site::current());
inline void LetKernelBehindBegin() {}
// Gives `size` <= 8 bytes to the warp and takes those of `lane`.
void ExchangeInWarp(const void* mine, void* theirs, size_t size, unsigned lane, Site here);
uint32_t AtomicAdd(uint32_t* word, uint32_t add);
uint64_t AtomicAdd(uint64_t* word, uint64_t add);
void AtomicMax(uint64_t* word, uint64_t value);
uint32_t CountIn(uint32_t* word);
void StoreReleaseSystem(uint64_t* word, uint64_t value);
uint64_t LoadAcquireSystem(const uint64_t* word);
uint64_t DeviceNs();
void Pause();

template <class T>
T ShuffleFrom(T value, unsigned lane, Site here = Site::current()) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  T theirs;
  ExchangeInWarp(&value, &theirs, sizeof(T), lane, here);
  return theirs;
}
template <class T>
T ShuffleXor(T value, unsigned mask, Site here = Site::current()) {
  return ShuffleFrom(value, (Thread() % kWarp) ^ mask, here);
}
inline bool AnyOfWarp(bool is_so, Site here = Site::current()) {
  uint32_t any = is_so ? 1 : 0;
  for (unsigned mask = 1; mask < kWarp; mask *= 2) any |= ShuffleXor(any, mask, here);
  return any != 0;
}

inline float ToFloat(float value) { return value; }
inline float ToFloat(Bf16 value) { return FromBf16(value); }
inline float ToFloat(Fp16 value) { return FromFp16(value); }
template <class T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return ToBf16(value);
  } else {
    return ToFp16(value);
  }
}
inline float FloatOfBits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
inline float Exp(float value) { return __builtin_expf(value); }
inline float Exp2(float value) { return __builtin_exp2f(value); }
inline float Log2(float value) { return __builtin_log2f(value); }
inline float Tanh(float value) { return __builtin_tanhf(value); }
inline float Erf(float value) { return __builtin_erff(value); }
inline float Quotient(float a, float b) { return a / b; }
inline float Larger(float a, float b) { return __builtin_fmaxf(a, b); }
inline float Fma(float a, float b, float c) { return a * b + c; }  // twice: a CPU that must call fmaf takes its time
inline void KeepBefore(uint32_t&) {}
inline void ExpectAligned(bool aligned) {
  FD_CHECK(aligned, "GPUs reach several elements at once only where they are aligned");
}

// What is on its way is not there yet: until the wait the bytes are NaN.
void CopyAsync(std::byte* shared, const std::byte* from, bool zeros);
void CommitCopies();
void WaitForCopies(unsigned groups);
template <int Groups>
void WaitCopies() {
  WaitForCopies(Groups);
}

#endif

// N elements that move as one; in memory they are aligned as one.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <int N, class T>
FD_DEVICE bool HoldsPacks(const T* memory) {
  return reinterpret_cast<uintptr_t>(memory) % sizeof(Pack<T, N>) == 0;
}
template <int N, class T>
FD_DEVICE Pack<T, N> LoadPack(const T* from) {
  ExpectAligned(HoldsPacks<N>(from));
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
FD_DEVICE void StorePack(T* to, const Pack<T, N>& pack) {
  ExpectAligned(HoldsPacks<N>(to));
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// As KeepBefore, of all of a value's words.
template <class T>
FD_DEVICE void KeepAllBefore(T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint32_t) == 0);
  uint32_t words[sizeof(T) / sizeof(uint32_t)];
  __builtin_memcpy(words, &value, sizeof(T));
  FD_UNROLL(unroll)
  for (uint32_t& word : words) KeepBefore(word);
  __builtin_memcpy(&value, words, sizeof(T));
}

// What the lanes of a warp, or all threads of a block, gave, combined in one order: across the lanes of each warp by
// halves, then warp by warp. Every thread gets the result. `shared`: a T a warp, no longer in use once all have come
// back.
template <class T, class Combine>
FD_DEVICE T CombineOverWarp(T value, const Combine& combine) {
  for (unsigned mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, ShuffleXor(value, mask));
  return value;
}
template <class T, class Combine>
FD_DEVICE T CombineOverBlock(T value, T* shared, const Combine& combine) {
  value = CombineOverWarp(value, combine);
  if (Thread() % kWarp == 0) shared[Thread() / kWarp] = value;
  SyncBlock();
  T all = shared[0];
  for (unsigned warp = 1; warp < Threads() / kWarp; ++warp) all = combine(all, shared[warp]);
  SyncBlock();
  return all;
}

template <class T>
FD_DEVICE T SumOverWarp(T value) {
  return CombineOverWarp(value, [](T a, T b) { return a + b; });
}
template <class T>
FD_DEVICE T SumOverBlock(T value, T* shared) {
  return CombineOverBlock(value, shared, [](T a, T b) { return a + b; });
}
template <class T>
FD_DEVICE T LeastOverWarp(T value) {
  return CombineOverWarp(value, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
FD_DEVICE T LeastOverBlock(T value, T* shared) {
  return CombineOverBlock(value, shared, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
FD_DEVICE T MostOverWarp(T value) {
  return CombineOverWarp(value, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
FD_DEVICE T MostOverBlock(T value, T* shared) {
  return CombineOverBlock(value, shared, [](T a, T b) { return a > b ? a : b; });
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_SIMT_H_
