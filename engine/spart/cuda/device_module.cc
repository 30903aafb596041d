#include "engine/spart/cuda/device_module.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fastdecode {

namespace {

constexpr char kFileName[] = "libfastdecode_cuda.so";
constexpr char kSymbol[] = "fastdecode_device_module";
constexpr char kWhatFor[] =
    "; --cuda-module is for the file libfastdecode_cuda.so, which the target fastdecode_cuda builds";

// That this process uses the GPU, while it lives. Null: it does already. Thread: any.
std::shared_ptr<void> ClaimGpu(int index) {
  static std::mutex mutex;
  // Never destroyed: a device that is left to the end of the process keeps its claim.
  static auto& claimed = *new std::set<int>();
  const std::lock_guard<std::mutex> lock(mutex);
  if (!claimed.insert(index).second) return nullptr;
  return {&claimed, [index](void*) {
            const std::lock_guard<std::mutex> lock_again(mutex);
            claimed.erase(index);
          }};
}

// The file that this code was loaded from, wherever it was moved to: the program, or libfastdecode.so in another's
// process.
struct OwnFile {
  bool is_library = false;
  std::filesystem::path path;  // empty: not known
};

OwnFile FindOwnFile() {
  Dl_info info = {};
  link_map* loaded = nullptr;
  void* const here = reinterpret_cast<void*>(&FindOwnFile);
  const int found = dladdr1(here, &info, reinterpret_cast<void**>(&loaded), RTLD_DL_LINKMAP);
  std::error_code unknown;
  // The loader has no name for the program, and dladdr the one that it was called by.
  if (found == 0 || loaded->l_name[0] == 0) return {false, std::filesystem::read_symlink("/proc/self/exe", unknown)};
  return {true, std::filesystem::canonical(loaded->l_name, unknown)};
}

// What to do where the module is not there. FASTDECODE_NO_CUDA says why this build has none; empty: it has one.
std::string HowToGetModule() {
  constexpr std::string_view kWhyNone = FASTDECODE_NO_CUDA;
  if (kWhyNone.empty()) return "build it (the target fastdecode_cuda), or name its file with --cuda-module";
  return absl::StrFormat(
      "this program was built without it (%s): configure with nvcc of CUDA 12.8 or newer in PATH and "
      "FASTDECODE_CUDA=ON, "
      "then build the target fastdecode_cuda; or name the file of another build of this version with --cuda-module",
      kWhyNone);
}

// What to do about a library that the loader misses, if `error`, its words, names one that we know.
std::string HowToGetLibrary(std::string_view error) {
  const auto names = [&](std::string_view library) { return error.find(library) != std::string_view::npos; };
  if (!names("cannot open shared object file")) return kWhatFor;
  if (names("libcudart.so") || names("libcublasLt.so")) {
    return "; install CUDA's runtime libraries of that major version (NVIDIA's packages cuda-cudart-* and "
           "libcublas-*), "
           "or put the folder that has them into LD_LIBRARY_PATH";
  }
  if (names("libcuda.so")) {
    return "; install NVIDIA's driver; a container has the host's (--gpus all, NVIDIA's container toolkit)";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> FindDeviceModule() {
  const OwnFile own = FindOwnFile();
  if (own.path.empty()) return absl::NotFoundError("GPU module: not known beside what, as this code's file is gone");
  const std::filesystem::path folder = own.path.parent_path();
  std::error_code unknown;
  const std::string beside = folder / kFileName;
  if (std::filesystem::exists(beside, unknown)) return beside;
  const std::filesystem::path library_folder = own.is_library ? folder : folder / FASTDECODE_LIBDIR_FROM_BINDIR;
  const std::string installed = (library_folder / "fastdecode" / kFileName).lexically_normal();
  if (std::filesystem::exists(installed, unknown)) return installed;
  return absl::NotFoundError(
      absl::StrFormat("GPU module: neither %s nor %s is there; %s", beside, installed, HowToGetModule()));
}

absl::StatusOr<std::unique_ptr<SPartDevice>> OpenDevice(const std::string& module_path, const DeviceOptions& options) {
  std::error_code unknown;
  if (!std::filesystem::exists(module_path, unknown)) {
    return absl::NotFoundError(absl::StrFormat("GPU module: %s does not exist%s", module_path, kWhatFor));
  }
  void* const module = dlopen(module_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const std::string error = dlerror();
    return absl::FailedPreconditionError(absl::StrCat("GPU module: ", error, HowToGetLibrary(error)));
  }
  const auto* const table = static_cast<const DeviceModuleTable*>(dlsym(module, kSymbol));
  if (table == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("GPU module: %s is none of FastDecode's%s", module_path, kWhatFor));
  }
  if (table->version != DeviceModuleTable::kVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("GPU module: %s is of version %d, this program needs %d: build both together, or name another "
                        "with --cuda-module",
                        module_path, table->version, DeviceModuleTable::kVersion));
  }
  std::shared_ptr<void> claim = ClaimGpu(options.index);
  if (claim == nullptr) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "--gpu: GPU %d is used by another engine of this process, or was given up by one", options.index));
  }
  absl::StatusOr<std::unique_ptr<SPartDevice>> device = table->open(options);
  if (device.ok()) (*device)->Keep(std::move(claim));
  return device;
}

}  // namespace fastdecode
