#ifndef FASTDECODE_TOOLS_NPY_H_
#define FASTDECODE_TOOLS_NPY_H_

#include <cstddef>
#include <cstdio>
#include <string>

namespace fastdecode {

// A NumPy file (format 1.0) that appears when it is whole: made under a temporary name at once, so that a path that
// cannot be written is found before the work is done. Owns: the temporary file, until Write gives it its name; the
// destructor removes what is left.
class NpyFile {
 public:
  // Throws Error naming the path.
  explicit NpyFile(const std::string& path);
  ~NpyFile();
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;

  // Writes a float32 [rows][columns] array, once. Throws Error naming the path.
  void Write(const float* values, size_t rows, size_t columns);

 private:
  [[noreturn]] void Fail();

  const std::string path_;
  const std::string temporary_;
  std::FILE* file_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_NPY_H_
