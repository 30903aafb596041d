#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_INTERRUPT_MARK_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_INTERRUPT_MARK_H_

#include <cstdint>

namespace fastdecode {

// Tells without a system call whether the kernel of this machine has interrupted the calling thread: where a data
// segment register holds a null selector, the processor sets it to 0 when it returns from an interrupt or exception to
// a user's code (IRET in the manuals of Intel, volume 2, and AMD, volume 3). Nulls are 0 to 3, and 64-bit code does not
// use ES: a 1 there is still there only if there was no interrupt. What lies below the kernel, a hypervisor or the
// firmware, does not return through it. Processors that return by ERETU (FRED) may keep the 1: who counts interrupts
// and sees no mark go must not conclude anything. Thread: the calling one's own.
class InterruptMark {
 public:
  static void Set() { asm volatile("mov %0, %%es" : : "r"(uint32_t{1})); }
  static bool Gone() {
    uint32_t selector;
    asm volatile("mov %%es, %0" : "=r"(selector));
    return (selector & 0xffff) == 0;
  }
  static void Clear() { asm volatile("mov %0, %%es" : : "r"(uint32_t{0})); }
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_INTERRUPT_MARK_H_
