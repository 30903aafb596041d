#ifndef FASTDECODE_ENGINE_MODEL_MODEL_FOLDER_H_
#define FASTDECODE_ENGINE_MODEL_MODEL_FOLDER_H_

#include <string>
#include <string_view>

namespace fastdecode {

// Guesses at what a person did who gave something else than a model's folder, for errors. Each is a sentence or two
// that says what it is and what to do, without a full stop at its end; empty where there is no guess.

// Guesses what a file is that cannot be understood, by its first bytes, of which 512 are enough: a git-lfs pointer, a
// web page, GGUF, a pickle, UTF-16, nothing at all.
std::string GuessContent(std::string_view bytes);

// Guesses why no config.json can be opened there. It need not be a folder at all, but may be a name on the hub.
std::string GuessWhyNoConfig(const std::string& model_dir);

// Guesses why a folder with a config.json has neither model.safetensors nor its index; empty too if it has no weights.
std::string GuessWhyNoWeights(const std::string& model_dir);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_MODEL_FOLDER_H_
