// node run_model.cjs MODEL FEEDS [PACKAGE]: run a model in onnxruntime-node, or in onnxruntime-web's WebAssembly; inputs
// and outputs are JSON, {name: [type, dims, numbers]}.
const fs = require("fs");
const path = require("path");

const arrays = { int64: BigInt64Array, float32: Float32Array };

// WebAssembly has no files: the model and the data beside it are handed over.
async function open(ort, model, name) {
  if (name === "onnxruntime-node") {
    return ort.InferenceSession.create(model);
  }
  ort.env.wasm.numThreads = 1;
  const { dir, base } = path.parse(model);
  const data = fs.readdirSync(dir).filter((file) => file.startsWith(`${base}.`) && file.endsWith(".data"));
  const externalData = data.map((file) => ({ path: file, data: fs.readFileSync(path.join(dir, file)) }));
  return ort.InferenceSession.create(fs.readFileSync(model), { externalData });
}

async function main(model, feeds, name = "onnxruntime-node") {
  const ort = require(name);
  const session = await open(ort, model, name);
  const tensors = {};
  for (const [name, [type, dims, numbers]] of Object.entries(JSON.parse(fs.readFileSync(feeds, "utf8")))) {
    const values = type === "int64" ? numbers.map(BigInt) : numbers;
    tensors[name] = new ort.Tensor(type, arrays[type].from(values), dims);
  }
  const found = {};
  for (const [name, tensor] of Object.entries(await session.run(tensors))) {
    found[name] = [tensor.type, tensor.dims, Array.from(tensor.data, Number)];
  }
  console.log(JSON.stringify(found));
}

main(...process.argv.slice(2));
