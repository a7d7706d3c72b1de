"""More recorded speech, no pyworld: pitch by flite's f0_shift, tract by resampling; half of it prose"""
import sys,re,glob,time,random,torch,numpy as np
import avatar_v.world.recorded as R
from scipy.signal import resample_poly
from avatar_v.world.speech import heard
from avatar_v.world.voice import sample_voice, with_noise
from avatar_v.world.style import sample_style
from avatar_v.world.motion import motion_track
from avatar_v.base.seeds import stream
torch.set_num_threads(1)
num,first,out=int(sys.argv[1]),int(sys.argv[2]),sys.argv[3]
text=' '.join(open(f,errors='ignore').read() for f in sorted(glob.glob('/usr/share/common-licenses/*')) if not f.endswith(('GFDL','GPL','LGPL')))
sents=[' '.join(re.findall(r"[A-Za-z']+,?",s)) for s in re.split(r'[.;:\n]{1}\s',text.replace('\n',' '))]
sents=sorted({s.lower() for s in sents if 4<=len(s.split())<=16}); print(len(sents),'prose')
BASE={'slt':166,'rms':102,'awb':119}
def clip(i):
    v,s=sample_voice(i),sample_style(i); n=201; rng=stream('rec2',i)
    who=list(R.SPEAKERS)[rng.integers(3)]; r=float(np.clip(R.SPEAKERS[who]/v.tract_length_cm*np.exp(rng.normal(0,.05)),.84,1.22)); r=round(100*r)/100
    shift=float(np.clip(v.pitch_hz/(BASE[who]*r),.6,1.7)); prose=i%2==0
    segs,words,pieces=[],[],[]; gain=rng.normal(0,4); now=R._silence(segs,pieces,0,rng.uniform(.06,.35)); k=0
    while now<n*640:
        said=R.sentence((i*414213)%1000000,k); txt=sents[rng.integers(len(sents))] if prose else R.punctuated(said)
        import subprocess,tempfile,wave,os
        f=f'/tmp/g2_{os.getpid()}.wav'
        d=subprocess.run(['flite','-voice',who,'--setf',f'duration_stretch={r/s.speaking_rate:.3f}','--setf',f'f0_shift={shift:.3f}','-t',txt,'-o',f,'-psdur'],capture_output=True,text=True)
        w=wave.open(f); x=np.frombuffer(w.readframes(w.getnframes()),'<i2')/32768.
        x=resample_poly(x,100,round(100*r)); ph=[R.Phone(p.name,p.start_s/r,p.end_s/r) for p in R.parse_phones(d.stdout)]
        x,ph=R._trimmed(x,ph); x=x*R._LOUD/max(float(np.sqrt(np.mean(x**2))),1e-6); t0=now/16000
        if prose:
            lev=gain+rng.normal(0,2); own=[R.Segment(p.name,t0+p.start_s,t0+p.end_s,float(p.name in R.VOWELS and p.name!='AH' and rng.random()<.5),lev,False,0.,-1) for p in ph]; eff=[lev]*len(own)
        else: own,spoken,eff=R._segments(said,ph,t0,len(words),gain,rng); words+=spoken
        pieces.append(x*R._gain(eff,own,t0,len(x))); segs+=own
        now=R._silence(segs,pieces,now+len(x),rng.uniform(.06,.35)*s.pause_length); k+=1
    sp=heard(i,tuple(segs),tuple(words),with_noise(np.concatenate(pieces)[:n*640],v,i),n)
    return (sp.audio*32768).short(),motion_track(sp,s,seed=i)
A,M=[],[];t=time.process_time()
for i in range(first,first+num):
    a,m=clip(i);A.append(a);M.append(m)
    if i%100==99 or i==first+num-1: print(i,time.process_time()-t,flush=True); torch.save(dict(audio=torch.stack(A),motion=torch.stack(M)),out)
