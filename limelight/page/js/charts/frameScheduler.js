// Pictures that fill the room they have. All that must be drawn waits for the next frame, and there
// everyone looks how much room there is before anyone draws: whoever looks after another has drawn
// makes the browser lay out the whole page again, for 64 strips 64 times. What is far out of sight is
// drawn when it comes near, or is printed: painting takes longer than all the rest.

const FRAME_MARGIN = 150; // pixels above and below the window
const frameWaiting = new Set();
const frameFar = new Map(); // from the room to the picture that would fill it
const frameObserver = new IntersectionObserver(
  (met) => met.filter((one) => one.isIntersecting).forEach(({ target }) => frameFar.get(target)?.draw()),
  { rootMargin: `${FRAME_MARGIN}px` },
);
window.addEventListener("beforeprint", () => frameFar.forEach((view) => frameFill(view, frameSize(view))));

/** A picture: its `drawNow(width, height)` is called when its room has a size. */
export class ScheduledPicture {
  /** Fill this element, and do it again when its size changes. */
  fill(container) {
    this.container = container;
    this.drawnFor = null; // width and height
    new ResizeObserver(() => {
      if (String(frameSize(this)) !== String(this.drawnFor)) this.draw();
    }).observe(container);
  }

  /** Draw in the next frame, however often that is asked for. */
  draw() {
    if (!frameWaiting.size) requestAnimationFrame(frameDraw);
    frameWaiting.add(this);
  }
}

/** Draw what is near, and wait for the rest; what has left the page is forgotten. */
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
