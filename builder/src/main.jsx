import { createRoot } from "react-dom/client";
import { App } from "./app.jsx";

const data = JSON.parse(document.getElementById("builder-data").textContent);
if (data.learnables.length) createRoot(document.getElementById("builder")).render(<App data={data} />);
else document.getElementById("builder").textContent = "No learnable is installed.";
