// Pictures that fill their container. All drawing waits for the next animation frame, where every
// container is measured before anything is drawn: alternating the two would force a layout for each
// of 64 strips. What is far out of sight is drawn when it comes near, or when the page is printed.

const FRAME_MARGIN = 150; // pixels above and below the window
const frameWaiting = new Set();
const frameFar = new Map(); // from the container to its picture
const frameObserver = new IntersectionObserver(
  (met) => met.filter((one) => one.isIntersecting).forEach(({ target }) => frameFar.get(target)?.draw()),
  { rootMargin: `${FRAME_MARGIN}px` },
);
window.addEventListener("beforeprint", () => frameFar.forEach((view) => frameFill(view, frameSize(view))));

/** A picture: its `drawNow(width, height)` is called when its container has a size. */
export class ScheduledPicture {
  /** Fill this element, and do it again when its size changes. */
  fill(container) {
    this.container = container;
    this.drawnFor = null; // width and height
    new ResizeObserver(() => {
      if (String(frameSize(this)) !== String(this.drawnFor)) this.draw();
    }).observe(container);
  }

  /** Draw once in the next frame, however often this is called. */
  draw() {
    if (!frameWaiting.size) requestAnimationFrame(frameDraw);
    frameWaiting.add(this);
  }
}

/** Draw what is near; the rest waits, and what has left the page is dropped. */
function frameDraw() {
  const views = [...frameWaiting];
  frameWaiting.clear();
  for (const container of frameFar.keys()) if (!container.isConnected) frameForget(container);
  const measured = views.map((view) => ({ view, size: frameSize(view), near: frameNear(view) }));
  for (const { view, size, near } of measured) {
    if (near || !size[0]) {
      frameForget(view.container);
      frameFill(view, size);
    } else {
      frameFar.set(view.container, view);
      frameObserver.observe(view.container);
    }
  }
}

function frameForget(container) {
  frameFar.delete(container);
  frameObserver.unobserve(container);
}

function frameFill(view, size) {
  view.drawnFor = size;
  if (size[0]) view.drawNow(...size); // else it is not on the page yet, or its tab is hidden
}

function frameSize({ container }) {
  return [container.clientWidth, container.clientHeight];
}

function frameNear({ container }) {
  const { top, bottom } = container.getBoundingClientRect();
  return bottom >= -FRAME_MARGIN && top <= window.innerHeight + FRAME_MARGIN;
}
