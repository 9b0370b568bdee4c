// node run_model.cjs MODEL FEEDS: run a model in onnxruntime-node; inputs and outputs are JSON, {name: [type, dims, numbers]}.
const fs = require("fs");
const ort = require("onnxruntime-node");

const arrays = { int64: BigInt64Array, float32: Float32Array };

async function main(model, feeds) {
  const session = await ort.InferenceSession.create(model);
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

main(process.argv[2], process.argv[3]);
